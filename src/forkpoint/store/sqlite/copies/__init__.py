"""Copies of a whole store: a backup of a store in use, and a store made of a backup."""
