"""A conversation behind a server.

- `backend`: the `Backend` that speaks to a server. `turns`: turns that run there, followed from here.
- `connection`: HTTP. `requests`: how a call is asked. `addresses`: which addresses are servers.
- `turn_log`: what was heard of a turn, so that a broken stream goes on where it ended.
"""
