"""What a program uses: `Conversation`, `AsyncConversation`, and what they give.

- `conversation`: one conversation. `conversations`: all conversations of a store. `sync`: both without await, by way of
  the thread of `portal`.
- Their parts: `handle` (a conversation from draft to closed), `opening` (how it is made or opened), `tries` (its
  turns), `sub_agents` (its team), `place` (which store or server an address means, and who shares it).
- `stream`: a turn while it runs. `visualizer`: a turn on a terminal.

The work is done by a `forkpoint.backend.protocol.Backend`: `forkpoint.engine` for a store in this process,
`forkpoint.remote` for a server.
"""

from forkpoint.backend.callbacks import Callback, Update, Visualizer
from forkpoint.backend.results import Branch, Call, Info, Isolation, RemovedWorkspace, SideAnswer, Stats, Turn
from forkpoint.conversation.conversation import AsyncConversation
from forkpoint.conversation.stream import TurnStream
from forkpoint.conversation.sync import Conversation, SyncTurnStream
from forkpoint.updates import TurnJoined, TurnStarted

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
