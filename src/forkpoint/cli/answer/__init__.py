"""The forms in which ``forkpoint run`` prints an answer for programs."""
