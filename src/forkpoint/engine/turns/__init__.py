"""One turn: planned, run step by step, and committed whole or not at all.

- `active_turns`: which turns run here, to join or cancel them. `transaction`: from begin to commit.
- `plan`: who answers, with what. `missing`: what the agent was made with and is not there now. `skills`: which of them
  a message calls for.
- `journal`: the steps of an open turn. `prompts`: rendered paths, kept in memory. `trace`: spans.
"""
