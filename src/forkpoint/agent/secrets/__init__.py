"""Secrets by reference (`secret`), and how their values are hidden in texts (`masking`)."""
