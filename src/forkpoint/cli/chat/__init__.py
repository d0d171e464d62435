"""``forkpoint chat``: a conversation on a terminal."""
