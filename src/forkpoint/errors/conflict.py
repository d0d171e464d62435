"""Errors of a caller who meets the work of another turn, writer or thread. Tests: tests/test_errors.py."""

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class Busy(ForkpointError, code="busy"):
    """Conversation {conversation} is running turn {turn}. Wait for it, join it, or cancel it where it runs."""

    conversation: str
    turn: str


class TurnOpen(ForkpointError, code="turn_open"):
    """Turn {turn} of conversation {conversation} is open ({outcome}). Approve or deny what waits in it, resume it,
    discard it, or begin a new one with supersede=True, which discards it."""

    conversation: str
    turn: str
    outcome: str


class TurnLost(ForkpointError, code="turn_lost"):
    """Turn {turn} is no longer this writer's: it is {outcome} now. Nothing of it was committed by this call; read the
    turn to see what became of it."""

    turn: str
    outcome: str


class TurnBehind(ForkpointError, code="turn_behind"):
    """Turn {turn} has {staged} journalled steps, and this handle knows of {known}: a call that was cancelled had
    landed. Use refresh() to get a handle that knows them all, and go on from there."""

    turn: str
    known: int
    staged: int


class NotResumable(ForkpointError, code="not_resumable"):
    """Turn {turn} ({outcome}) cannot be resumed: {why}. Read the conversation, and retry the turn or begin a new
    one."""

    turn: str
    outcome: str
    why: str


class Stale(ForkpointError, code="stale"):
    """Conversation {conversation} is at revision {actual}, not {expected}, and nothing was changed. Read it again and
    decide anew."""

    conversation: str
    expected: int
    actual: int


class ConversationClosed(ForkpointError, code="conversation_closed"):
    """Conversation {conversation} was closed here. Open it again to go on."""

    conversation: str

    @form
    def reopen_after_fork(self, conversation: str) -> None:
        """Conversation {conversation} was opened before os.fork(), in another process, and cannot be used in this one.
        Open it again here."""


class UseAsync(ForkpointError, code="use_async"):
    """{what} would wait for the very thread that it is called from, which runs all conversations of this process. Use
    AsyncConversation there, or call it from another thread."""

    what: str
