"""Errors of a caller who meets the work of another turn, writer or thread. Tests: tests/test_errors.py."""

import time

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class Busy(ForkpointError, code="busy"):
    """Conversation {conversation} is running turn {turn}.{where}

    Wait for it, join it, or cancel it.

    Command line: Wait for it, send it a message with `forkpoint steer {conversation}`, or stop it with `forkpoint
    cancel {conversation}`.

    Chat: Wait until it has ended, and send the request again.
    """

    conversation: str
    turn: str
    host: str | None = None  # where the turn runs
    process: int | None = None  # the process id there
    since: int | None = None  # microseconds since 1970, UTC

    def __post_init__(self) -> None:
        if self.process is None:
            self.where = ""
            return
        on, since = f" on host {self.host}" if self.host else "", ""
        if self.since is not None:
            since = time.strftime(" since %Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since // 1_000_000))
        self.where = f" It is being run by process {self.process}{on}{since}."

    @form
    def conversation_locked(self, conversation: str) -> None:
        """Another request is running a turn of conversation {conversation}.

        Send the request again in a few seconds.
        """
        self.turn, self.host, self.process, self.since = "", None, None, None


class Held(ForkpointError, code="held"):
    """Conversation {conversation} is held, and nothing of its family may be removed: {holds}.

    Ask whoever holds it. Only then release it.

    Python: Ask whoever holds it. Only then release it, with release().

    Command line: Ask whoever holds it. Only then release it, with `forkpoint release {conversation}`.

    HTTP: Ask whoever holds it. Only then release it, with DELETE /api/conversations/{conversation}/holds.

    Chat: Tell whoever runs the server.
    """

    conversation: str
    holds: str  # the id and the reason of each


class CannotKeep(ForkpointError, code="cannot_keep"):
    """Conversation {conversation} cannot keep {branch}: {why}. Nothing was changed.

    Look at the family, and choose another branch.

    Python: Look at the family with tree(), and choose another branch.

    Command line: Look at the family with `forkpoint tree {conversation}`, and choose another branch.

    HTTP: Look at the family with GET /api/conversations/{conversation}/tree, and choose another branch.
    """

    conversation: str
    branch: str
    why: str

    @form
    def keeps_itself(self, conversation: str) -> None:
        """Conversation {conversation} cannot keep itself. Nothing was changed.

        Name the branch whose head it is to have.
        """
        self.branch, self.why = conversation, "it is the conversation itself"

    @form
    def branch_not_ready(self, conversation: str, branch: str, why: str) -> None:
        """Conversation {conversation} cannot keep {branch} yet: {why}. Nothing was changed.

        Go on in {branch} until its turn is committed, and try again.
        """


class TurnOpen(ForkpointError, code="turn_open"):
    """Turn {turn} of conversation {conversation} is open ({outcome}).

    Approve or deny what waits in it, resume it, or discard it.

    Python: Approve or deny what waits in it, resume it, discard it, or begin a new one with supersede=True, which
    discards it.

    Command line: Use `forkpoint approve`, `deny`, `resume` or `discard {conversation}`.

    Terminal chat: It has to end first.

    HTTP: Call /approve, /deny, /resume or /discard of that turn, or send the new message with "supersede": true, which
    discards it.

    Chat: Wait until somebody has decided on it, or go on in another conversation; whoever runs the server can approve,
    deny or discard it.
    """

    conversation: str
    turn: str
    outcome: str


class TurnLost(ForkpointError, code="turn_lost"):
    """Turn {turn} is no longer this writer's: it is {outcome} now.

    Nothing of it was committed by this call. Read the turn to see what became of it.

    Command line: Nothing of it was committed by this command. Use `forkpoint show CONVERSATION --turn {turn}` to see
    what became of it.

    Chat: Another server took it over, and may have answered it. With the same Idempotency-Key the request gets what
    became of it; without one, look at the conversation before you send the request again.
    """

    turn: str
    outcome: str


class TurnBehind(ForkpointError, code="turn_behind"):
    """Turn {turn} has {staged} journalled steps, and this handle knows of {known}: a call that was cancelled had
    landed.

    Read the turn again, and go on from there.

    Python: Use refresh() to get a handle that knows them all, and go on from there.
    """

    turn: str
    known: int
    staged: int


class TurnSteered(ForkpointError, code="turn_steered"):
    """A message was steered to turn {turn} that this handle does not know of, and nothing was committed.

    Read the turn again, and go on with the message.

    Python: Use refresh() to get a handle that knows it, and go on with the message.
    """

    turn: str


class NotResumable(ForkpointError, code="not_resumable"):
    """Turn {turn} ({outcome}) cannot be resumed: {why}.

    Read the conversation, and retry the turn or begin a new one.

    Command line: Use `forkpoint retry` to run its input again, or `forkpoint run` to say something else.
    """

    turn: str
    outcome: str
    why: str


class Stale(ForkpointError, code="stale"):
    """Conversation {conversation} is at revision {actual}, not {expected}, and nothing was changed.

    Read it again and decide anew.

    Chat: Send the request again.
    """

    conversation: str
    expected: int | str  # a revision; or a revision with a digest of what was shown, as in an ETag
    actual: int | str


class BringRefused(ForkpointError, code="bring_refused"):
    """Nothing was brought from {branch} into conversation {conversation}: {why}.

    Choose another branch, or bring something else of it.
    """

    conversation: str
    branch: str
    why: str


class ConversationClosed(ForkpointError, code="conversation_closed"):
    """Conversation {conversation} was closed here.

    Open it again to go on.
    """

    conversation: str

    @form
    def reopen_after_fork(self, conversation: str) -> None:
        """Conversation {conversation} was opened before os.fork(), in another process, and cannot be used in this one.

        Open it again here.
        """


class UseWith(ForkpointError, code="use_with"):
    """{what} has to be entered, so that whoever leaves the loop early cancels the turn. Nothing was run.

    Try again; if that does not help, report it.

    Python: Use it so: {line}
    """

    what: str
    line: str


class UseAsync(ForkpointError, code="use_async"):
    """{what} would wait for the very thread that it is called from, which runs all conversations of this process.

    Try again; if that does not help, report it.

    Python: Use AsyncConversation there, or call it from another thread.
    """

    what: str
