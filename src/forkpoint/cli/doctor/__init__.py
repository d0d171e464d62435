"""``forkpoint doctor`` and ``verify``: what is checked, and how it is told."""
