"""Sub-agents as data: whom an agent offers (`offer`), and the tools with which a model works with them (`tools`)."""
