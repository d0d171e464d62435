"""Pure functions over events. No I/O, no clock, no database.

The promise kept here: **history is immutable and shared, and a conversation is a pointer into it.** So
whatever a program wants to know of a conversation (its path, its open calls, its state, where it may be
forked, whether it was tampered with) is a function of the events up to a position, and of nothing else.
Two conversations that share a prefix share these answers for it.

- `paths`: which stretches of which segments make up a path; where two paths part.
- `pairing`: every tool call has one result, in order; which positions are safe to cut at.
- `wholeness`: no empty or cut-off content.
- `state`: what the events fold to.
- `client_view`: what a client could see of a path, and which path its list of messages continues.
- `branches`: how two texts differ, what of a path can be copied to another, whether a path ends in a finished answer,
  and which results a tool's calls had.
- `digests`: the chain that makes a change visible. `records`: the second one, for what is kept about conversations.
- `seals`: all records up to a point under one digest. `anchors`: small documents, kept elsewhere, that name a seal.
"""
