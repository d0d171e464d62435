"""A request that came before, and the turn that it began then.
Tests: tests/server/chat/test_disconnects.py, test_repeats.py, tests/server/responses/test_places.py."""

from forkpoint.backend.callbacks import Callback
from forkpoint.backend.results import Turn
from forkpoint.errors import TurnCancelled
from forkpoint.server.http.call import ApiCall
from forkpoint.store import StoredTurn


async def joined(call: ApiCall, same: StoredTurn, tell: Callback) -> Turn | None:
    """The turn of the same request, once it has ended. None if it has to be run anew, or was interrupted.

    A client that gave up waiting has gone, and its turn is being stopped: that one is not joined, but waited for.
    """
    if same.outcome == "interrupted":
        return None
    turns = call.services.turns
    here = turns.feed(call.tenant, same.conversation)
    if here is not None and here.is_left:
        await turns.until_left(call.tenant, same.conversation)
        return None
    try:
        return await call.backend.placement.join(same, tell)
    except TurnCancelled:
        if here is not None:
            raise  # it was not for want of a client
        return None
