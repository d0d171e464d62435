"""What a conversation needs from the place where it lives, and the data that passes between the two.

- `protocol`: `Backend`, which `forkpoint.engine` and `forkpoint.remote` implement.
- `names`, `messages`, `settings`: what goes in. `results`: what comes out.
- `callbacks`: functions that get the updates of a turn. `catch_up`: all updates so far, in short, for late listeners.
"""
