"""The care of a store in PostgreSQL: what a collection leaves to the server, copies of it, and how it is set up."""
