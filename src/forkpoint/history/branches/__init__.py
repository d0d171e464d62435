"""Branches: how two differ, what one can take over from another, where one can go on, and with which results."""
