"""Standing approvals: what a conversation's turns may do without a question. They are given with an approval."""

from typing import Annotated

from fastapi import Path, Query, Response

from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.server.http.call import CallMade, Calls, Conversation, answer
from forkpoint.wire.documents import ApprovalsDocument

calls = Calls("approvals", under="/api/conversations/{id}")


@calls("GET", "/approvals", role="read", gives=ApprovalsDocument, raises="not_found")
async def list_approvals(
    call: CallMade,
    id: Conversation,
    revoked: Annotated[bool, Query(description="With those that were revoked.")] = False,
) -> Response:
    """What is allowed there without a question, the oldest first. `approve` gives such approvals, with `always`."""
    info, _ = await call.found(id)
    return answer(ApprovalsDocument(await call.backend.approvals(info.id, revoked=revoked)))


@calls("DELETE", "/approvals/{approval}", role="use", gives=StandingApproval, raises="not_found")
async def revoke_approval(
    call: CallMade,
    id: Conversation,
    approval: Annotated[str, Path(description="The id of a standing approval.", max_length=64)],
    by: Annotated[str | None, Query(description="Who revokes it; it is recorded.", max_length=256)] = None,
) -> Response:
    """Take a standing approval back: such calls wait again, also in a turn that runs. Once more changes nothing."""
    info, _ = await call.found(id)
    return answer(await call.backend.revoke_approval(info.id, approval, by=call.by(by)))
