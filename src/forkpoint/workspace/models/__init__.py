"""Models that settings name: ``[models.NAME]`` in the user's file, or in a trusted project's.

A name without a slash is looked up here, once, where an agent is made. What is stored is the whole `LLM`, so nobody
needs the settings to open a conversation again.
"""
