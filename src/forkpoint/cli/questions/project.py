"""Whether the user trusts the workspace of a command: an option says so, or the user is asked on a terminal.
Tests: tests/cli/test_chat_trust.py."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Struct

from forkpoint.cli.options import option
from forkpoint.cli.output import one_line, tell
from forkpoint.cli.questions.keyboard import forget_typed, says_yes
from forkpoint.cli.questions.pin_view import PinView
from forkpoint.conversation.look import is_remote
from forkpoint.errors import BadSetting, TrustChanged
from forkpoint.llm.model import LLM
from forkpoint.workspace import Trust, TrustStand, set_trust, standing
from forkpoint.workspace.defaults import named_store, settings_file
from forkpoint.workspace.models.names import default_llm, model_from
from forkpoint.workspace.pins.pins import APPROVED

T = TypeVar("T")

TrustGiven: TypeAlias = Annotated[
    bool | None,
    option(
        "--trust/--no-trust",
        "Whether you trust the project that the workspace belongs to, with what it runs now. It is remembered, but "
        "changes no explicit `forkpoint trust --revoke`.",
        show_default=False,
    ),
]

Workspace: TypeAlias = Annotated[
    str | None, option("--workspace FOLDER", "The folder that the tools of a new conversation work in.")
]

_QUESTION = """\
Do you trust the files in this folder? {root}
Yes: settings that the project brings are used. No: none are, and tools that can do harm ask first.
Either is remembered, and `forkpoint trust` changes it. [y/n, Enter: decide later] """

_UNDECIDED = (
    "{root} is neither trusted nor untrusted: nothing of it is read, and tools ask where the agent says so. "
    "Decide with: forkpoint trust {quoted}"
)


def is_here(workspace: str | None, store: str | None) -> bool:
    """Whether a workspace is a folder of this machine, and not one of a server."""
    return workspace is not None and os.path.isdir(os.path.expanduser(workspace)) and not is_remote(store)


def ask_trust(workspace: str | None, store: str | None, *, say: Callable[[str], None]) -> bool | None:
    """Asks the user about an undecided workspace. Without a terminal, it only says that the workspace is undecided.

    Gives what the user said if it could not be kept; None if it is kept, or if nothing was said.
    """
    if workspace is None or not is_here(workspace, store) or (found := _standing(workspace)).trust != "undecided":
        return None
    root = one_line(found.root)
    folder, config = os.path.expanduser(workspace), settings_file()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        say(_UNDECIDED.format(root=root, quoted=shlex.quote(found.root)))
        return None
    question = _QUESTION.format(root=root)
    view = None
    try:
        view = PinView(folder, found, config)
    except BadSetting as error:  # whoever says yes all the same hears of it again
        tell(one_line(str(error)))
    forget_typed()
    while True:
        if view is not None:
            view.above(question)
        try:
            said = input(question).strip().lower()
        except EOFError:
            print()
            return None
        if not said:
            return None
        if said in ("y", "yes", "n", "no"):
            trusted = said.startswith("y")
            # At once: the user may leave without a message, and what was shown may have changed by then. If this
            # fails, the conversation tries again, and warns.
            pinned = view.pinned if view is not None and trusted else None
            kept = set_trust(folder, "trusted" if trusted else "untrusted", config, pinned)
            return None if kept.warning is None else trusted


def in_approved_project(
    act: Callable[[], T], workspace: str | os.PathLike[str] | None, store: str | None, *, asks: bool = True
) -> T:
    """Does something that a project refuses if it is not what was approved.

    On a terminal, unless ``asks`` is False, the user then sees what changed, and is asked. If the user approves it,
    ``act`` is called again; otherwise `TrustChanged` is raised, and nothing has run.
    """
    try:
        return act()
    except TrustChanged as error:
        folder = None if workspace is None else os.fspath(workspace)
        is_seen = asks and sys.stdin.isatty() and sys.stderr.isatty()
        if folder is None or not is_seen or not is_here(folder, store) or TrustChanged.guards_lost.made(error):
            raise
        folder, config = os.path.expanduser(folder), settings_file()
        view = PinView(folder, standing(folder, config), config)
        question = f"{one_line(view.pinned.root)} is trusted, but this is not what you approved. Approve it?"
        if not says_yes(question, show=view.above):
            raise
        if (warning := set_trust(folder, "trusted", config, view.pinned).warning) is not None:
            tell(one_line(f"{warning} It is approved until this command ends."))
            os.environ[APPROVED] = f"{os.environ.get(APPROVED, '')} {view.digest}".strip()
        return act()


def place_of(workspace: str | None, store: str | None, trust: bool | None) -> str | None:
    """The store to use: the given one, else the one that the trusted project of the workspace names, else None."""
    if store is not None or not is_here(workspace, store):
        return store
    address, source = in_approved_project(
        lambda: named_store(workspace, trust=trust_wished(workspace, trust)), workspace, store
    )
    return address if source == "project" else store


class ModelsHere(Struct, frozen=True):
    """The models that names mean for a command: the user's, and those of the workspace's project if it is trusted.

    ``trust`` is what the user says of the workspace with this command.
    """

    workspace: str | None = None
    store: str | None = None
    trust: bool | None = None

    def model_from(self, fields: Mapping[str, Any]) -> LLM:
        """The model of fields that an `LLM` has. Its name may be one of the settings."""
        return self._approved(partial(model_from, fields))

    def default(self) -> LLM:
        """The model that is meant if no option names one."""
        return self._approved(default_llm)

    def _approved(self, find: Callable[..., LLM]) -> LLM:
        folder = self.workspace if is_here(self.workspace, self.store) else None
        trust = None if folder is None else trust_wished(folder, self.trust)
        return in_approved_project(lambda: find(folder, trust=trust), folder, self.store)


def trust_wished(workspace: str | None, wish: bool | None) -> Trust | None:
    """How a workspace stands once the user's wish is kept; None if there is no wish."""
    if wish is None:
        return None
    found = _standing(workspace or ".").trust
    if wish is False:
        return "untrusted"
    return "trusted" if found == "undecided" else found


def _standing(workspace: str) -> TrustStand:
    return standing(os.path.expanduser(workspace), settings_file())
