"""``forkpoint backup`` and ``restore``: copies of a whole store. Tests: tests/cli/test_copies.py."""

import time
from typing import Annotated

from forkpoint.cli import figures
from forkpoint.cli.common import FileStore
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, print_json, tell
from forkpoint.conversation import Conversations, CopyStep
from forkpoint.conversation.look import is_there, look
from forkpoint.errors import NotFound

PATIENCE = 1.0
"""Seconds between two lines about how far a copy has come."""


def backup(
    file: Annotated[str, argument("FILE", "The file to write.")],
    force: Annotated[bool, option("--force", "Replace the file if it is there.")] = False,
    store: FileStore = None,
    json: Json = False,
) -> None:
    """Copy a store to a file, while others use it.

    The copy has all conversations of all tenants, as they were when it began. It is checked, page by page and digest by
    digest, before it gets its name: a file with that name is whole. Only you can read it. Copying the store with cp is
    not the same: what was committed last stands in a second file, the log.

    \b
    Examples:
      forkpoint backup forkpoint-monday.db
      forkpoint backup /backups/forkpoint.db --force --json
    """
    if not is_there(store):
        raise NotFound("store", look(store).address)
    with Conversations(store) as conversations:
        made = conversations.backup(file, force=force, progress=Progress())
    if json:
        print_json(made)
    else:
        print(f"{made.path}: {_contents(made.conversations, made.events, made.bytes)}, checked")
        if made.anchor is not None:
            print(f"anchor, to keep elsewhere: {made.anchor.to_json()}")


def restore(
    file: Annotated[str, argument("FILE", "The backup.")],
    erasures: Annotated[
        str | None, option("--erasures FILE", "Receipts of what was erased since: erase that here too.")
    ] = None,
    forget_erasures: Annotated[
        bool, option("--forget-erasures", "Nothing was erased since, or it may come back.")
    ] = False,
    force: Annotated[
        bool, option("--force", "Replace the store that is there; it is kept under another name.")
    ] = False,
    store: FileStore = None,
    json: Json = False,
) -> None:
    """Make a store of a backup.

    The backup is checked first. The new store appears whole or not at all. A store that is there already is left as it
    is, unless you give --force: then it is kept beside the new one, with the date in its name. Stop the servers and
    programs that use it before.

    What was erased after the backup was made would come back with it. So say which receipts to apply (--erasures), or
    that there is nothing to apply (--forget-erasures).

    \b
    Examples:
      forkpoint restore forkpoint-monday.db --store sqlite:///new.db --forget-erasures
      forkpoint restore /backups/forkpoint.db --erasures erasures.jsonl --force
    """
    with Conversations(store) as conversations:
        made = conversations.restore(
            file, erasures=erasures, forget_erasures=forget_erasures, force=force, progress=Progress()
        )
    if json:
        print_json(made)
        return
    print(f"{made.path}: {_contents(made.conversations, made.events, made.bytes)}, checked")
    if made.erasures:
        print(f"{figures.counted(made.erasures, 'newer erasure')} applied.")
    if made.kept is not None:
        print(f"The store that stood there is {made.kept} now.")


LARGE = 256_000_000
"""Bytes from which on checking a copy takes a while."""


class Progress:
    """Says on stderr how far a copy has come: not in the first second, and then once a second at most."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, step: CopyStep) -> None:
        now = time.monotonic()
        if now - self._told >= PATIENCE or (step.stage == "checking" and step.total >= LARGE and not step.done):
            self._told = now
            done = f"{figures.size(step.done)} of " if step.done else ""
            tell(f"{step.stage} {done}{figures.size(step.total)}")


def _contents(conversations: int, events: int, size: int) -> str:
    return f"{figures.counted(conversations, 'conversation')}, {figures.counted(events, 'event')}, {figures.size(size)}"
