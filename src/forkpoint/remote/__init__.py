"""A conversation behind a server. Callers that only ask whether an address is a server import `is_server` from here.

- `backend`: the `Backend` that speaks to a server. `turns`: turns that run there, followed from here.
- `connection`: HTTP. `requests`: how a call is asked. `addresses`: which addresses are servers.
- `turn_log`: what was heard of a turn, so that a broken stream goes on where it ended.
"""

from forkpoint.remote.addresses import is_server

__all__ = ["is_server"]
