"""The engine: conversations of a store, run by this process.

- `engine`: the `Backend` of a store that this process has open.
- `turns/`: one turn, from its plan to its commit. `team/`: the sub-agents that work beneath it.
- `condensation`: shorter prompts for long conversations. `trust`: what a trusted project changes.
- `placement`: where a client's request goes on that sends a name, a fork point or a list of messages.
- `requests`: what a turn sends, or has sent. `workspaces`: a folder of its own for a fork.
- `record_cache`, `views`: what is known of a conversation without reading the store, and how it is shown.
"""
