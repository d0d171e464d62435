"""An agent as JSON (`document`), and how its Python functions are found again (`functions`)."""
