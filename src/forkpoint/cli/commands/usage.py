"""``forkpoint usage``: what was spent in a store, in all."""

from typing import TYPE_CHECKING

from forkpoint.cli import figures
from forkpoint.cli.common import Store
from forkpoint.cli.output import Json, display, facts, print_json

if TYPE_CHECKING:
    from forkpoint.events import Usage


def usage(store: Store = None, json: Json = False) -> None:
    """Show what was spent in all.

    Each token is counted once, however many forks share it, and those of deleted conversations too. What chat
    completions without a conversation have spent stands apart as well. A server says what your key's tenant has spent.

    \b
    Example:
      forkpoint usage --json
    """
    total, beside = _spent(store)
    if json:
        from forkpoint.wire.documents import spending_document

        print_json(spending_document(total, beside))
    else:
        display(facts([("in all", figures.used(total)), ("of it beside conversations", figures.used(beside))]))


def _spent(store: str | None) -> "tuple[Usage, Usage]":
    """All, and what of it beside conversations. In a store that is not there it is nothing, and none is made."""
    from forkpoint.cli.glance import is_there
    from forkpoint.conversation.portal import wait_for
    from forkpoint.events import Usage

    return wait_for("usage()", _read, store) if is_there(store) else (Usage(), Usage())


async def _read(store: str | None) -> "tuple[Usage, Usage]":
    from forkpoint.conversation.place import Place

    place = Place(store)
    try:
        return await (await place.backend()).usage()
    finally:
        await place.leave()
