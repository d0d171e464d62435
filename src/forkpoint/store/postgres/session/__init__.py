"""Connections to a database: what is said over them, what comes back, and what their errors mean."""
