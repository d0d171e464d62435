"""Whether the user trusts the workspace of a command: an option says so, or the user is asked on a terminal.
Tests: tests/cli/test_chat_trust.py."""

import os
import shlex
import sys
from collections.abc import Callable
from typing import Annotated, TypeAlias

from forkpoint.cli.options import option
from forkpoint.cli.output import one_line
from forkpoint.conversation.look import is_remote
from forkpoint.workspace import Trust, TrustStand, set_trust, standing
from forkpoint.workspace.defaults import named_model, named_store, settings_file

TrustGiven: TypeAlias = Annotated[
    bool | None,
    option(
        "--trust/--no-trust",
        "Whether you trust the project that the workspace belongs to. It is remembered, but changes no explicit "
        "`forkpoint trust --revoke`.",
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


def asked(workspace: str | None, store: str | None, *, say: Callable[[str], None]) -> bool | None:
    """Asks the user about an undecided workspace. Without a terminal, it only says that the workspace is undecided."""
    if workspace is None or not is_here(workspace, store) or (found := _standing(workspace)).trust != "undecided":
        return None
    root = one_line(found.root)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        say(_UNDECIDED.format(root=root, quoted=shlex.quote(found.root)))
        return None
    while True:
        try:
            said = input(_QUESTION.format(root=root)).strip().lower()
        except EOFError:
            print()
            return None
        if not said:
            return None
        if said in ("y", "yes", "n", "no"):
            trusted = said.startswith("y")
            # At once: the user may leave without a message. If this fails, the conversation tries again, and warns.
            set_trust(os.path.expanduser(workspace), "trusted" if trusted else "untrusted", settings_file())
            return trusted


def place_of(workspace: str | None, store: str | None, trust: bool | None) -> str | None:
    """The store to use: the given one, else the one that the trusted project of the workspace names, else None."""
    if store is not None or not is_here(workspace, store):
        return store
    address, source = named_store(workspace, trust=_trust(workspace, trust))
    return address if source == "project" else store


def model_of(workspace: str | None, store: str | None, trust: bool | None) -> str | None:
    """The model that the trusted project of the workspace names, if nothing else names one; else None."""
    if not is_here(workspace, store):
        return None
    model, source = named_model(workspace, trust=_trust(workspace, trust))
    return model if source == "project" else None


def _trust(workspace: str | None, wish: bool | None) -> Trust:
    """How a workspace stands once the user's wish is kept."""
    found = _standing(workspace or ".").trust
    if wish is False:
        return "untrusted"
    return "trusted" if wish and found == "undecided" else found


def _standing(workspace: str) -> TrustStand:
    return standing(os.path.expanduser(workspace), settings_file())
