"""What a conversation needs from the place where it lives, and the data that passes between the two.

- `protocol`: `Backend`, which `forkpoint.engine` and `forkpoint.remote` implement.
- `names`, `messages`, `settings`: what goes in. `results`: what comes out.
- `callbacks`: who is told of a turn while it runs. `catch_up`: what was told so far, in short, for whoever comes late.
"""
