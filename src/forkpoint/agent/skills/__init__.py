"""Skills: instructions that a model gets when a message or a file calls for them. `files` reads them from folders."""
