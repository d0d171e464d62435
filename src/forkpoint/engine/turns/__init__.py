"""One turn: planned, run step by step, and committed whole or not at all.

- `runner`: what may begin, and what follows a commit. `active_turns`: which turns run here. `transaction`: from begin
  to commit. `unended`: turns whose end could not be written. `reader`: turns read from the store.
- `plan`: who answers, with what. `skills`: which skills a message calls for.
- `journal`: the steps of an open turn. `prompts`: rendered paths, kept in memory. `trace`: spans.
"""
