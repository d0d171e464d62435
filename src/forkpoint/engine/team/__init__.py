"""Sub-agents of a store's conversations.

- `teams`: making, finding, reaching and closing them, in a turn and from outside.
- `running`: the sub-agents of one running turn. `spawn`: who a new one is, and what it begins with.
- `rights`: what a parent's approval and hooks mean for those beneath it.
"""
