"""Who may answer on a server: its own agents from a file, and what clients may send instead of a name."""
