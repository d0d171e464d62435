"""``forkpoint keep``: a conversation gets the head of one of its branches. Tests: tests/cli/test_keep.py."""

import shlex
from typing import Annotated

import typer

from forkpoint.cli import figures
from forkpoint.cli.common import Id, Key, Store, opened
from forkpoint.cli.output import Json, one_line, print_json
from forkpoint.conversation import Info
from forkpoint.wire.documents import info_document

Kept = Annotated[str, typer.Argument(metavar="BRANCH", help="The branch: its name, its id, or the start of its id.")]


def keep(conversation: Id, branch: Kept, key: Key = None, store: Store = None, json: Json = False) -> None:
    """Go on from a branch under the conversation's own name.

    The head of the conversation moves to the head of a branch of its family. What stood there is kept, under an id of
    its own. The branch's agent and cache key come along; name, title, tags, approval, limits, hooks and the workspace
    of the conversation stay. The branch itself is not changed.

    \b
    Examples:
      forkpoint keep build-1234 second-try
      forkpoint keep build-1234 01a1e234-4fe9
    """
    with opened(conversation, store) as this, opened(branch, store) as other:
        before, theirs = this.info(), other.info()
        aside = this.keep(other, key=key)
        if aside is not None:
            with aside:
                left = aside.info()
        now = this.info()
    if json:
        said = {"conversation": now, "branch": theirs, "aside": left if aside is not None else None}
        print_json({name: None if info is None else info_document(info) for name, info in said.items()})
        return
    name, kept = one_line(now.name), one_line(theirs.name)
    if now.revision == before.revision:
        print(f"{name} stands where {kept} stands, with the same agent. Nothing was changed.")
        return
    print(f"{name} has the {figures.counted(now.events, 'event')} of {kept} now, and its agent and cache key.")
    if aside is not None:
        print(f"What stood there ({figures.counted(left.events, 'event')}) is kept as {left.id}")
        print(f"To undo it: {_command('keep', now, left.id, store=store)}")
    else:
        print(f"{kept} went on from where {name} stood, so nothing had to be set aside.")
        if before.head is not None:
            print(f"To go back there: {_command('rewind', now, '--at', before.head, store=store)}")


def _command(verb: str, info: Info, *words: str, store: str | None) -> str:
    """A command that somebody can paste."""
    where = [] if store is None else ["--store", store]
    return shlex.join(["forkpoint", verb, info.name, *words, *where])
