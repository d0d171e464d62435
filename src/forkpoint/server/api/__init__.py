"""The calls of the native API, under ``/api``: one file for each family of them, and what they take and give."""
