"""What a store does in its tables, in whichever database: each operation is a function that runs in a transaction.

- `operations/`: conversations, turns, commits, history, lists. `budgets/`: what may be spent.
- `evidence/`: records. `seals/`: anchors. `verification/`: whether all is as it was written.
- `erasure/`, `collection/`: what goes. `transfer/`: export and import.
- `rows`: between rows and records. `held_turns`: the turns that this process holds.
"""
