"""Sub-agents of a store's conversations.

- `teams`: making, finding, reaching and closing them, from outside of turns. `children`: the same for turns.
- `active_team`: the sub-agents of one running turn. `spawn`: who a new one is, and what it begins with.
- `rights`: what a parent's approval and hooks mean for those beneath it.
"""
