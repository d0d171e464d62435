"""Turns: run, read and steered. Each as JSON, as a stream, or asynchronously."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query, Response
from msgspec.structs import replace

from forkpoint.agent.agent import NUMBERS, Agent, Limits
from forkpoint.agent.approval import policies
from forkpoint.agent.team.tools import is_team_tool
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import Continuation, DecidedCall, Decision, How, NewTurn
from forkpoint.backend.results import SteerReceipt
from forkpoint.backend.results import Turn as TurnResult
from forkpoint.conversation.conversation import AsyncConversation
from forkpoint.engine import taken_over
from forkpoint.errors import AlreadyExists, BadArgument, BadRequest, Invalid, KeyReused, NoSuchTurn
from forkpoint.server.api.bodies import (
    Approve,
    ApprovedCall,
    AskAside,
    Condense,
    Deny,
    GoesOn,
    Nothing,
    ResumeTurn,
    RetryTurn,
    RunTurn,
    SteerTurn,
    given_in,
    messages_of,
)
from forkpoint.server.api.conversations import MAKING, Target, target_of
from forkpoint.server.api.public import public_turn
from forkpoint.server.api.replies import ended, from_elsewhere, run, runs_here, stream, while_there
from forkpoint.server.http.call import ApiCall, CallMade, Calls, Conversation, F, Turn, answer
from forkpoint.server.live.feed import tell_end
from forkpoint.server.live.stream import EventStream
from forkpoint.wire.documents import (
    CondensedDocument,
    PageDocument,
    SideAnswerDocument,
    TurnDocument,
    condensed_document,
)

calls = Calls("turns", under="/api/conversations/{id}")

RUNNING = (
    "busy turn_open no_agent cannot_resume trust_changed guards_lost broken_settings unsafe_settings bad_argument "
    "bad_agent missing_key shutting_down turn_handed_over too_many turn_failed turn_cancelled turn_lost model_error "
    "model_timeout model_rate_limit outcome_unknown budget_exceeded budget_unpriced"
)
CONTINUING = f"not_found no_such_turn not_resumable {RUNNING}"
_HEARD = "what happens in the turn as it happens, provisionally; the last event is `turn` or `error`"


def runs_turn(calls: Calls, path: str, **description: Any) -> Callable[[F], F]:
    """Makes a function answer a call that runs a turn, and describes how all of them answer."""
    return calls("POST", path, gives=TurnDocument, streams=_HEARD, asynchronous=True, **description)


@runs_turn(
    calls,
    "/turns",
    role="use",
    takes=RunTurn,
    optional=False,
    once=True,
    if_match=True,
    raises="not_found exists bad_name key_reused stale nothing_to_run not_whole too_large call_not_open "
    f"{MAKING} {RUNNING}",
)
async def run_turn(call: CallMade, id: Conversation) -> Response:
    """Run a turn: it commits, waits for an approval, or fails and nothing has moved.

    By default the turn goes on if the client disconnects, and can be fetched or joined.
    """
    body = await call.body(RunTurn)
    given = given_in(body, id, call.services.settings.max_messages)
    key, if_revision, backend = call.key, call.if_revision, call.backend
    target = await target_of(call, id, body)
    if body.retry_of is not None:
        await backend.turns.read(target.conversation, body.retry_of)  # raises if there is no such turn

    async def begin(target: Target, tell: Callback) -> TurnResult:
        if key is not None:  # perhaps of a client that gave up waiting, and asks again
            await call.services.turns.until_left(call.tenant, target.conversation)
        new = NewTurn(
            given=tuple(given),
            go_on=body.go_on,
            draft=target.draft,
            retry_of=body.retry_of,
            supersede=body.supersede,
            key=key,
            if_revision=if_revision,
            accepted=call.wants_async,
            how=How(allow=target.allow),
        )
        return await backend.turns.run(target.conversation, target.agent, new, tell)

    async def act(tell: Callback) -> TurnResult:
        try:
            return await begin(target, tell)
        except (AlreadyExists, KeyReused):
            if target.draft is None:
                raise
        # Another request has made the conversation since we looked: perhaps the same request, sent twice.
        return await begin(await target_of(call, id, body), tell)

    return await run(call, act, stop=body.cancel_on_disconnect)


@calls("GET", "/turns", role="read", gives=PageDocument[TurnDocument], raises="not_found bad_cursor")
async def list_turns(
    call: CallMade,
    id: Conversation,
    cursor: Annotated[str | None, Query(description="`next` of an earlier page.", max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 50,
    events: Annotated[bool, Query(description="With the events of each turn.")] = False,
    order: Annotated[
        Literal["path", "newest"],
        Query(description="`path`: as they stand in the history. `newest`: the turn first that began last."),
    ] = "path",
    committed: Annotated[bool, Query(description="Only those that are history.")] = False,
    tries: Annotated[bool, Query(description="Only those at the head that are not history.")] = False,
    key: Annotated[
        str | None, Query(description="Only the turn of the request with this `Idempotency-Key`.", max_length=255)
    ] = None,
) -> Response:
    """Its turns, with the tries that did not commit: what they cost and what their tools did.

    A cursor belongs to the order that its page has.
    """
    info, _ = await call.found(id)
    items: Sequence[TurnResult]
    after = None
    if key is not None:
        made = await call.backend.turns.made_with(info.id, key)
        items = [] if made is None else [made]
    elif tries:
        items = await call.backend.turns.tries(info.id)
    else:
        newest_first = order == "newest"
        page = await call.backend.turns.list(
            info.id, cursor=cursor, limit=limit, newest_first=newest_first, committed=committed
        )
        items, after = page.items, page.next
    return answer({"items": [public_turn(turn, events=events) for turn in items], "next": after})


@calls(
    "GET",
    "/turns/{turn}",
    role="read",
    gives=TurnDocument,
    streams="the turn that runs, from how it stands now to its end",
    raises="not_found no_such_turn",
)
async def get_turn(
    call: CallMade,
    id: Conversation,
    turn: Turn,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for its end, if it runs.")] = 0,
) -> Response:
    """One turn, with its events. As a stream it is joined."""
    info, _ = await call.found(id)
    feed = runs_here(call, info.id, turn)
    if call.wants_stream:
        if feed is not None:
            return stream(call, feed, late=True)
        await call.backend.turns.read(info.id, turn)  # raises if there is no such turn
        return EventStream(from_elsewhere(call, info.id, turn))
    if wait and feed is not None:
        with feed.awaited():
            await while_there(call, feed.ended.wait(), wait)
    elif wait:
        await while_there(call, ended(call, info.id, turn), wait)
    return answer(public_turn(await call.backend.turns.read(info.id, turn), events=True))


@calls(
    "POST",
    "/turns/{turn}/cancel",
    role="use",
    takes=Nothing,
    gives=TurnDocument,
    raises="not_found no_such_turn outcome_unknown",
)
async def cancel_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Cancel a turn, whichever process runs it, and wait for its outcome. Too late, it says `committed`.

    A turn whose process is gone ends as `cancelled` at once. A turn that waits for an approval is discarded instead.
    """
    await call.body(Nothing)
    info, _ = await call.found(id)
    if (feed := runs_here(call, info.id, turn)) is not None:
        with suppress(NoSuchTurn):  # it has just ended
            await call.backend.turns.cancel(info.id, turn)
        await feed.ended.wait()
        return answer(public_turn(feed.outcome or await call.backend.turns.read(info.id, turn), events=True))
    found = await call.backend.turns.read(info.id, turn)
    if found.outcome in {"running", "interrupted", "awaiting_approval"}:
        found = await call.backend.turns.cancel(info.id, turn)
        tell_end(found, call.services.watching.mailboxes(call.tenant, info.id))
    return answer(public_turn(found, events=True))


@calls(
    "POST",
    "/turns/{turn}/steer",
    role="use",
    takes=SteerTurn,
    optional=False,
    gives=SteerReceipt,
    once=True,
    raises="not_found no_such_turn key_reused not_whole too_large",
)
async def steer_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Send a message to a turn that is open, whichever process runs it: the model gets it with the next tool results.

    The message is on disk when this answers. If the model has its answer by then, it is asked again. A turn that is
    over is `no_such_turn`: run the message as the next turn.
    """
    body = await call.body(SteerTurn)
    info, _ = await call.found(id)
    return answer(await call.backend.turns.steer(info.id, as_message(body.message), turn=turn, key=call.key))


@calls(
    "POST",
    "/turns/{turn}/discard",
    role="use",
    takes=Nothing,
    gives=TurnDocument,
    raises="not_found busy no_such_turn not_resumable",
)
async def discard_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """End an open turn that nobody runs. What its tools did stays visible."""
    await call.body(Nothing)
    info, _ = await call.found(id)
    discarded = await call.backend.turns.discard(info.id, turn)
    tell_end(discarded, call.services.watching.mailboxes(call.tenant, info.id))
    return answer(public_turn(discarded, events=True))


@calls(
    "POST",
    "/turns/{turn}/settle",
    role="use",
    takes=Nothing,
    gives=TurnDocument,
    raises="not_found no_such_turn outcome_unknown",
)
async def settle_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """After `outcome_unknown`: the turn as it turned out."""
    await call.body(Nothing)
    info, _ = await call.found(id)
    settled = await call.backend.turns.settle(info.id, turn)
    call.services.watching.moved(call.tenant, info.id)
    return answer(public_turn(settled, events=True))


@runs_turn(
    calls,
    "/turns/{turn}/approve",
    role="use",
    takes=Approve,
    optional=False,
    raises=f"digest_missing call_changed {CONTINUING}",
)
async def approve_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Let calls that wait run, and go on. An approval is of content: each call is named with its digest.

    Each waiting call of a turn's document has its `digest`. If other content waits by now, nothing runs.
    """
    try:
        body = await call.body(Approve)
    except Invalid as error:
        if error.param == "body" or error.param.startswith("calls"):
            raise BadRequest.digest_missing(error.param, error.why) from None
        raise
    chosen = [DecidedCall(one.id, one.digest, _arguments(one)) for one in body.calls]
    return await _decided(call, id, turn, body, Decision(True, tuple(chosen), call.by(body.by), always=body.always))


@runs_turn(calls, "/turns/{turn}/deny", role="use", takes=Deny, raises=f"call_changed {CONTINUING}")
async def deny_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Refuse calls that wait, and go on: the model is told, with the reason. By default all that wait are refused."""
    body = await call.body(Deny)
    chosen = [DecidedCall(one.id, one.digest) for one in body.calls]
    return await _decided(call, id, turn, body, Decision(False, tuple(chosen), call.by(body.by), body.reason))


@runs_turn(
    calls,
    "/turns/{turn}/retry",
    role="use",
    takes=RetryTurn,
    once=True,
    raises=f"not_found no_such_turn key_reused {RUNNING}",
)
async def retry_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Run the input of a turn again, from the last good state. One that is still open is discarded."""
    body = await call.body(RetryTurn)
    key, this = call.key, await _opened(call, id, body)
    return await run(call, lambda tell: this(tell).retry(turn, key=key), stop=body.cancel_on_disconnect)


@runs_turn(calls, "/turns/{turn}/resume", role="use", takes=ResumeTurn, raises=CONTINUING)
async def resume_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Go on with a turn that failed, was cancelled or interrupted, after its last finished step."""
    body = await call.body(ResumeTurn)
    this = await _opened(call, id, body)
    return await run(
        call,
        lambda tell: this(tell).resume(turn, rerun=body.rerun, limits=_limits(call, this(tell), body.limits)),
        stop=body.cancel_on_disconnect,
    )


@calls(
    "POST",
    "/ask",
    role="use",
    takes=AskAside,
    optional=False,
    gives=SideAnswerDocument,
    streams="pieces of the answer as they come; the last event is `answer` or `error`",
    raises=f"not_found nothing_to_run not_whole too_large {RUNNING}",
)
async def ask(call: CallMade, id: Conversation) -> Response:
    """A side question: answered from the history as it is, and nothing of it is kept but what it cost.

    It stops when the client disconnects, for nobody could fetch its answer.
    """
    body = await call.body(AskAside)
    messages = messages_of(body, id, call.services.settings.max_messages)
    info, settings = await call.found(id)
    (agent, allow), backend = call.going_on(info, settings, body), call.backend
    return await run(
        call,
        lambda tell: backend.questions.ask(info.id, agent, messages, allow=allow, tell=tell),
        stop=True,
        is_turn=False,
    )


@calls(
    "POST",
    "/condense",
    role="use",
    takes=Condense,
    gives=CondensedDocument,
    if_match=True,
    raises=f"not_found stale {RUNNING}",
)
async def condense(call: CallMade, id: Conversation) -> Response:
    """Let prompts forget the older part of the conversation at once. Recorded as a note; no turn may be open.

    Its agent's condenser does it; for an agent without one, its model writes a summary. A client that goes away changes
    nothing: it is done all the same.
    """
    body = await call.body(Condense)
    info, settings = await call.found(id)
    agent, allow = call.going_on(info, settings, body)
    made = await call.backend.turns.condense(
        info.id, agent, focus=body.focus, if_revision=call.if_revision, allow=allow
    )
    call.services.watching.moved(call.tenant, info.id)
    return answer(condensed_document(made))


# Steering.


async def _opened(call: ApiCall, id: str, body: GoesOn) -> Callable[[Callback], AsyncConversation]:
    """Opens a conversation. The callback that is passed to the result gets the updates of the next turn."""
    info, settings = await call.found(id)
    agent, allow = call.going_on(info, settings, body)
    return lambda tell: AsyncConversation.over(call.backend, info, settings, agent, callbacks=[tell], allow=allow)


async def _decided(call: ApiCall, id: str, turn: str, body: Approve | Deny, decision: Decision) -> Response:
    """Goes on with a turn after a decision, which without calls is about those that wait now.

    Raises `NoSuchTurn` if the turn is not open, or if no call waits in it.
    """
    info, settings = await call.found(id)
    (agent, allow), backend = call.going_on(info, settings, body), call.backend
    found = await backend.turns.read(info.id, turn)  # raises if there is no such turn at all
    if info.open_turn != turn:
        raise NoSuchTurn(info.id, "approve" if decision.approved else "deny", f"turn {turn} is not open")
    if not decision.calls:
        decision = replace(decision, calls=tuple(DecidedCall(one.id, one.digest) for one in found.waiting))
    how = Continuation(decision=decision, how=How(allow=allow))
    return await run(
        call, lambda tell: backend.turns.resume(info.id, turn, agent, how, tell), stop=body.cancel_on_disconnect
    )


def _arguments(call: ApprovedCall) -> str | None:
    """The exact text of the arguments that a call is approved with, if they are others."""
    if call.arguments is None or isinstance(call.arguments, str):
        return call.arguments
    return msgspec.json.encode(call.arguments).decode()


def _limits(call: ApiCall, this: AsyncConversation, limits: Limits | None) -> Limits | None:
    """The limits for a turn that goes on. Raises `BadArgument` if they exceed those of one of the server's agents."""
    agent = this.agent
    if limits is None or agent is None or agent.name not in call.services.agents.names():
        return limits
    _, own = taken_over(this._handle.settings, call.services.agents.named(agent.name))
    is_own = own.replace(mcp=agent.mcp, llm=agent.llm).to_json() == agent.to_json()  # whatever its servers offer
    if not is_own and not _has_functions(agent):
        return limits
    for name in NUMBERS:
        most, wanted = getattr(own.limits, name), getattr(limits, name)
        if most is not None and (wanted is None or wanted > most):
            why = f"the limits of agent {agent.name!r} are the server's ({name}: {most:g})"
            raise BadArgument("resume", f"limits.{name}", why)
    return limits


def _has_functions(agent: Agent) -> bool:
    """Whether an agent has functions. Only the server's own agents do: a client's agent is data alone."""
    return any(not is_team_tool(one) for one in agent.tools) or any(map(callable, policies(agent.approval)))
