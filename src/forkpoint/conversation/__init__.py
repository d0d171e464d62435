"""Conversations that run: over a store, with an agent, one transaction for each turn.

The way of a turn, and where to read about each step:

- `conversation`, `sync`: `AsyncConversation` and `Conversation`, what a program uses. `portal` is what lies between.
- `naming`, `messages`, `settings`: what goes in. `results`, `updates`, `streaming`, `requests`: what comes out;
  `told`: updates in short.
- `places`: which store an address means, and who shares it.
- `backend`, `local`: what a conversation needs from the place where it lives; and a store in this process as one.
- `isolating`: a folder of its own for a fork.
- `remote`, `following`, `heard`, `asking`, `http`, `addresses`: a server as such a place. `documents`, `problems`: how
  values and errors are written as JSON, and read again.
- `running`: which turns run here. `turn`: the transaction, and how it ends.
- `planning`: what a turn begins with. `steps`: its journal. `prompts`: the prompt that it goes on from. `tracing`: its
  spans.
"""

from forkpoint.conversation.conversation import AsyncConversation
from forkpoint.conversation.results import Branch, Call, Info, Isolation, RemovedWorkspace, SideAnswer, Stats, Turn
from forkpoint.conversation.streaming import TurnStream
from forkpoint.conversation.sync import Conversation, SyncTurnStream
from forkpoint.conversation.updates import Callback, TurnJoined, TurnStarted, Update, Visualizer

__all__ = [
    "AsyncConversation",
    "Branch",
    "Call",
    "Callback",
    "Conversation",
    "Info",
    "Isolation",
    "RemovedWorkspace",
    "SideAnswer",
    "Stats",
    "SyncTurnStream",
    "Turn",
    "TurnJoined",
    "TurnStarted",
    "TurnStream",
    "Update",
    "Visualizer",
]
