"""What a program uses: `Conversation` for one conversation, `Conversations` for a store, and what they return.

- `conversation`: one conversation. `conversations`: all conversations of a store. `sync`: both without await, by way of
  the thread of `portal`.
- Their parts: `handle` (a conversation from draft to closed, and how it is opened), `tries` (its turns), `sub_agents`
  (its team), `place` (which store or server an address means, and who shares it), `look` (what is at an address).
- `stream`: a turn while it runs. `visualizer`: a turn on a terminal.

The work is done by a `forkpoint.backend.protocol.Backend`: `forkpoint.engine` for a store in this process,
`forkpoint.remote` for a server.
"""

from forkpoint.backend.actor import acting_as
from forkpoint.backend.bring import BringReport
from forkpoint.backend.callbacks import Callback, Update, Visualizer
from forkpoint.backend.diff import CallPair, Diff, DiffSide, DiffTurn, SettingDifference, StateDifference, TurnPair
from forkpoint.backend.results import (
    Branch,
    Call,
    ExportReport,
    Glance,
    ImportReport,
    Info,
    Isolation,
    RemovedWorkspace,
    SideAnswer,
    Spending,
    Stats,
    SteerReceipt,
    Turn,
)
from forkpoint.conversation.conversation import AsyncConversation
from forkpoint.conversation.conversations import AsyncConversations
from forkpoint.conversation.stream import SyncTurnStream, TurnStream
from forkpoint.conversation.sync import Conversation, Conversations
from forkpoint.history.anchors import Anchor, read_anchors
from forkpoint.history.branches.diff import Piece, TextDiff
from forkpoint.history.budgets import Budget, BudgetStanding, Figures
from forkpoint.history.steers import Steer
from forkpoint.store.erasure import Receipt
from forkpoint.store.values import Backup, Collected, CopyStep, Hold, Record, Restored, Verification
from forkpoint.updates import TurnJoined, TurnStarted

__all__ = [
    "Anchor",
    "AsyncConversation",
    "AsyncConversations",
    "Backup",
    "Branch",
    "BringReport",
    "Budget",
    "BudgetStanding",
    "Call",
    "CallPair",
    "Callback",
    "Collected",
    "Conversation",
    "Conversations",
    "CopyStep",
    "Diff",
    "DiffSide",
    "DiffTurn",
    "ExportReport",
    "Figures",
    "Glance",
    "Hold",
    "ImportReport",
    "Info",
    "Isolation",
    "Piece",
    "Receipt",
    "Record",
    "RemovedWorkspace",
    "Restored",
    "SettingDifference",
    "SideAnswer",
    "Spending",
    "StateDifference",
    "Stats",
    "Steer",
    "SteerReceipt",
    "SyncTurnStream",
    "TextDiff",
    "Turn",
    "TurnJoined",
    "TurnPair",
    "TurnStarted",
    "TurnStream",
    "Update",
    "Verification",
    "Visualizer",
    "acting_as",
    "read_anchors",
]
