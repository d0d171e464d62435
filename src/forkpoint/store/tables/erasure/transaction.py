"""Erasing, and doing so again in a copy that was made before: each is one transaction, and cleaning up afterwards.
Tests: tests/store/test_erasure.py, forkpoint.testing.conformance.evidence.erasures."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from forkpoint.errors import NotFound
from forkpoint.store.erasure import Erasing, Receipt
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.erasure import receipts, removal
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.view import View

T = TypeVar("T")


async def erase(view: View, id: str, chosen: Erasing, reason: str, *, more_follow: bool) -> Receipt:
    """Erases what was chosen, and cleans up unless more erasures follow. The receipt says what has to wait."""
    receipt = await _write(view, id, partial(removal.erase, id=id, chosen=chosen, reason=reason))
    pending = view.residue if more_follow else await view.clean()
    return replace(receipt, pending=pending, out_of_reach=view.out_of_reach)


async def replay(view: View, receipt: Receipt) -> bool:
    """Erases what a receipt names, in a copy that was made before. False if that was done already."""
    done = await _write(view, receipt.id, partial(receipts.replay, receipt=receipt))
    if done:
        await view.clean()
    return done


async def _write(view: View, id: str, operation: Callable[[Database, Scope], T]) -> T:
    if not await view.opened.is_made():
        raise NotFound("conversation", id)
    landed = partial(removal.is_made, id=id)
    return await view.write("erasure", id, operation, landed=landed, alone=True, exclusive=True)
