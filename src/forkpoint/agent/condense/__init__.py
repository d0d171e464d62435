"""Shorter prompts: when to condense and what to ask (`condenser`), and where to cut (`cut`)."""
