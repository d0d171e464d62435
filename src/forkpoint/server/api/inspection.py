"""Looking into a conversation: what it used, what its tools keep, what is sent, and whether anybody changed it.

And at all of them together: what was spent, and whether anybody changed any.
"""

from typing import Annotated

from fastapi import Path, Query, Response
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.allowance import as_allowed
from forkpoint.errors import Invalid
from forkpoint.history.anchors import Anchor
from forkpoint.llm.prompt.inspection import Inspection
from forkpoint.llm.prompt.misses import CacheReport
from forkpoint.server.api.bodies import ChangeState, Collect, PreviewRequest, Verify, VerifyAll, messages_of
from forkpoint.server.api.conversations import MAKING, target_of
from forkpoint.server.http.call import CallMade, Calls, Conversation, answer
from forkpoint.store import Collected, Record
from forkpoint.wire.documents import (
    PageDocument,
    SpendingDocument,
    StateDocument,
    StatsDocument,
    VerificationDocument,
    spending_document,
    stats_document,
    verification_document,
)

calls = Calls("looking")


@calls("GET", "/api/conversations/{id}/stats", role="read", gives=StatsDocument, raises="not_found")
async def get_stats(call: CallMade, id: Conversation) -> Response:
    """Tokens, dollars and cached share: its own, what it inherited, and its family's."""
    info, _ = await call.found(id)
    return answer(stats_document(await call.backend.stats(info.id)))


@calls("GET", "/api/usage", role="read", gives=SpendingDocument)
async def get_usage(call: CallMade) -> Response:
    """All that you ever spent, deleted conversations included, and what of it beside any conversation.

    Each token is counted once, however many forks share it. Beside conversations are chat completions without one.
    """
    return answer(spending_document(*await call.backend.usage()))


@calls("GET", "/api/conversations/{id}/state", role="read", gives=StateDocument, raises="not_found")
async def get_state(call: CallMade, id: Conversation) -> Response:
    """What tools have set, as it is committed."""
    info, _ = await call.found(id)
    return answer(StateDocument(await call.backend.state(info.id)))


@calls(
    "PATCH",
    "/api/conversations/{id}/state",
    role="use",
    takes=ChangeState,
    gives=StateDocument,
    if_match=True,
    raises="not_found busy turn_open stale not_whole too_large",
)
async def change_state(call: CallMade, id: Conversation) -> Response:
    """Change the agent's state from outside, as a note of its own. The conversation must have no open turn."""
    body = await call.body(ChangeState)
    if not body.set.keys().isdisjoint(body.remove):
        raise Invalid("remove", "one of these keys is set too")
    info, _ = await call.found(id)
    await call.backend.update_state(info.id, body.set, body.remove, if_revision=call.if_revision)
    call.services.watching.moved(call.tenant, info.id)
    return answer(StateDocument(await call.backend.state(info.id)))


@calls(
    "POST",
    "/api/conversations/{id}/request",
    role="use",
    takes=PreviewRequest,
    optional=False,
    gives=Inspection,
    raises=f"not_found nothing_to_run not_whole too_large no_agent cannot_resume {MAKING}",
)
async def preview_request(call: CallMade, id: Conversation) -> Response:
    """What a turn with these messages would send, to the byte, beside the request before it. Nothing is sent."""
    body = await call.body(PreviewRequest)
    messages = messages_of(body, id, call.services.settings.max_messages)
    target = await target_of(call, id, body)
    request = await call.backend.questions.request(
        target.conversation, target.agent, messages, draft=target.draft, allow=target.allow
    )
    return answer(_shown(request, target.agent))


@calls(
    "GET",
    "/api/conversations/{id}/request",
    role="read",
    gives=Inspection,
    raises="not_found no_such_turn no_agent cannot_resume bad_argument",
)
async def get_request(
    call: CallMade,
    id: Conversation,
    turn: Annotated[str | None, Query(description="The turn that sent it; by default the last one.")] = None,
    allow: Annotated[list[str] | None, Query(description="What may be missing, as for a turn.")] = None,
) -> Response:
    """What was sent, to the byte, beside the request before it: why a cache was missed."""
    info, settings = await call.found(id)
    allowed = as_allowed(allow or (), "a request")
    agent = call.agent_of(info, settings, allowed)
    return answer(_shown(await call.backend.questions.sent(info.id, agent, turn, allow=allowed), agent))


@calls(
    "GET", "/api/conversations/{id}/turns/{turn}/cache", role="read", gives=CacheReport, raises="not_found no_such_turn"
)
async def explain_cache(
    call: CallMade,
    id: Conversation,
    turn: Annotated[
        str, Path(description="A turn's id; or `newest`, the newest that asked a model and is history.", max_length=64)
    ],
) -> Response:
    """Why a turn's calls missed their provider's cache: what was cached, what could have been, and the reasons.

    Each call is compared with the request before it. A try that did not commit can be named too.
    """
    info, _ = await call.found(id)
    return answer(await call.backend.questions.why(info.id, None if turn == "newest" else turn))


@calls(
    "POST",
    "/api/conversations/{id}/verify",
    role="read",
    takes=Verify,
    gives=VerificationDocument,
    raises="not_found bad_argument",
)
async def verify_conversation(call: CallMade, id: Conversation) -> Response:
    """Check that nobody changed its history."""
    body = await call.body(Verify)
    info, _ = await call.found(id)
    return answer(verification_document(await call.backend.verify(info.id, head_digest=body.head_digest)))


@calls("POST", "/api/verify", role="read", takes=VerifyAll, gives=VerificationDocument, raises="bad_argument")
async def verify_all(call: CallMade) -> Response:
    """Check that nobody changed the history of any of your conversations."""
    body = await call.body(VerifyAll)
    if any(anchor.tenant is None for anchor in (*body.anchors, body.since) if anchor is not None):
        raise Invalid("anchors", "an anchor of the whole store can only be checked where the store is")
    found = await call.backend.verify(None, head_digest=body.head_digest, anchors=body.anchors, since=body.since)
    return answer(verification_document(found))


@calls("GET", "/api/anchor", role="read", gives=Anchor)
async def get_anchor(call: CallMade) -> Response:
    """A document to keep elsewhere, which shows later whether anybody rewrote what your conversations are now."""
    return answer(await call.backend.anchor(all_tenants=False))


@calls("GET", "/api/conversations/{id}/records", role="read", gives=PageDocument[Record], raises="not_found bad_cursor")
async def list_records(
    call: CallMade,
    id: Conversation,
    cursor: Annotated[str | None, Query(description="`next` of an earlier page.", max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 50,
) -> Response:
    """What was kept about it, in order: how it began, how each try ended, what was changed, and by whom."""
    info, _ = await call.found(id)
    page = await call.backend.records(info.id, cursor=cursor, limit=limit)
    return answer(PageDocument(page.items, page.next))


@calls("POST", "/api/collect", role="operate", takes=Collect, gives=Collected, raises="")
async def collect(call: CallMade) -> Response:
    """Remove what you have deleted from the disk, and what was kept long enough.

    The server does this by itself, every few minutes and after deletions. `pending` says what could not be finished
    now, and why; the next collection does it.
    """
    body = await call.body(Collect)
    return answer(await call.backend.collect(dry_run=body.dry_run))


def _shown(request: Inspection, agent: Agent) -> Inspection:
    """A request without the headers that are between the server and its provider: they may hold a secret."""
    routed = {name.lower() for name in agent.llm.session_headers}
    return replace(request, headers=tuple(header for header in request.headers if header[0].lower() in routed))
