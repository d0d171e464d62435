"""Errors of what a person relies on: approvals, and the trust in a workspace. Tests: tests/test_errors.py."""

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class NotShown(ForkpointError, code="not_shown"):
    """Nothing was approved in conversation {conversation}: this object has not shown what waits there ({calls}), and an
    approval is of what was shown.

    Read the turn, look at its waiting calls, and decide on those.

    Python: Use open_turn() to look: it gives the turn with its `waiting` calls, and then approve() means those. Or pass
    a `Call` that you have in hand.

    Command line: Use `forkpoint approve {conversation}` to look at the calls and to decide.
    """

    conversation: str
    calls: str


class CallChanged(ForkpointError, code="call_changed"):
    """Call {call!r} of turn {turn} waits with other content than the decision was about, so nothing was approved,
    denied or run.

    Read the turn again, look at its waiting calls, and decide on those.

    Command line: Look at what waits now with `forkpoint approve CONVERSATION`, and decide on that; use its digest where
    nobody can be asked.
    """

    call: str
    turn: str


class BadWorkspace(ForkpointError, code="bad_workspace"):
    """{path!r} cannot be the workspace: {why}.

    Name a folder that exists.
    """

    path: str
    why: str

    @form
    def workspace_not_made(self, kind: str, path: str, why: str) -> None:
        """The fork cannot have a {kind} of {path!r}: {why}.

        Nothing was made, and nothing was changed; share the folder, choose another kind, or name a folder that exists.
        """

    @form
    def workspace_differs(self, conversation: str, path: str, actual: str) -> None:
        """Conversation {conversation} exists already and works in {actual}, not in {path}.

        Go on there without naming a folder, or fork it into that folder.

        Python: Leave workspace= out to go on there, or go on in fork(workspace=...).

        Command line: Leave --workspace out to go on there, or use `forkpoint fork {conversation} --workspace {path}`.
        """
        self.why = f"the conversation works in {actual}"

    @form
    def trust_refused(self, path: str, why: str) -> None:
        """Nothing can be said here of whether {path} is trusted: {why}.

        Nothing was made or changed; say nothing of trust, or ask whoever runs the server.
        """


class TrustChanged(ForkpointError, code="trust_changed"):
    """What the project {project} runs, or how strict it is, is not what was approved: {what}. So nothing of it was run.

    Use `{command}` to see the change and to decide. Where nobody can be asked, use `{command} --trust-digest {digest}`,
    or set FORKPOINT_TRUST_DIGEST to that digest: that approves exactly what is there now.

    HTTP: Ask whoever runs the server to look at the change there, with `{command}`, and to decide. What is there now
    has the digest {digest}.

    Chat: Ask whoever runs the server to look at the change there, and to decide.
    """

    project: str
    what: str
    command: str
    digest: str

    @form
    def guards_lost(self, project: str, folder: str, why: str) -> None:
        """The conversation works under the hooks or the approval policy of the project {project}, and {why}. So nothing
        was run.

        Let {folder} belong to {project} again, and trust that; or go on in a fork for which you name the folder.

        Python: Let {folder} belong to {project} again, and trust that; or go on in fork(workspace={folder!r}).

        Command line: Let {folder} belong to {project} again, and trust that (`forkpoint trust`); or go on in a fork
        (`forkpoint fork NAME --workspace {folder}`).

        HTTP: Ask whoever runs the server to look at the folder there, or go on in a fork with a "workspace".

        Chat: Ask whoever runs the server to look at the folder there.
        """
        self.what, self.command, self.digest = why, "forkpoint trust", ""


class NotKept(ForkpointError, code="not_kept"):
    """{why}

    Check the file and its folder, and try again.
    """

    why: str
