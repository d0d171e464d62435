"""Branches: how a conversation of a store parts in two, and what is done with the parts.

- `branches`: the part of the engine that callers see. `forks`: forks and rewinds. `substitution`: what a
  fork with other results or another state begins with.
- `keeps`: a branch's head becomes that of the conversation itself. `comparison`: how two branches differ.
  `brings`: what one branch takes from another. `branch_path`: where a branch stands, for both of these.
"""
