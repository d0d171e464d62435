"""Turns: run, read and steered. Each as JSON, as a stream, or asynchronously."""

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Query, Response
from msgspec.structs import replace

from forkpoint.agent.agent import NUMBERS, Agent, Limits
from forkpoint.agent.approval import policies
from forkpoint.agent.team.tools import is_team_tool
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.options import How, NewTurn
from forkpoint.backend.results import Call as ToolCall
from forkpoint.backend.results import Turn as TurnResult
from forkpoint.conversation.conversation import AsyncConversation
from forkpoint.engine import taken_over
from forkpoint.errors import AlreadyExists, BadArgument, Busy, KeyReused, NoSuchTurn
from forkpoint.server.api.bodies import (
    Approve,
    AskAside,
    Condense,
    Deny,
    GoesOn,
    Nothing,
    ResumeTurn,
    RetryTurn,
    RunTurn,
    SeenCall,
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
    "busy turn_open no_agent cannot_resume bad_argument bad_agent missing_key shutting_down too_many "
    "turn_failed turn_cancelled model_error model_timeout model_rate_limit outcome_unknown"
)
STEERING = f"not_found no_such_turn not_resumable {RUNNING}"
_HEARD = "what happens in the turn as it happens, provisionally; the last event is `turn` or `error`"


def runs_turn(calls: Calls, path: str, **description: Any) -> Callable[[F], F]:
    """Makes a function answer a call that runs a turn, and describes how all of them answer."""
    return calls("POST", path, gives=TurnDocument, streams=_HEARD, asynchronous=True, **description)


@runs_turn(
    calls,
    "/turns",
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
        new = NewTurn(
            given=tuple(given),
            draft=target.draft,
            retry_of=body.retry_of,
            supersede=body.supersede,
            key=key,
            if_revision=if_revision,
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


@calls("GET", "/turns", gives=PageDocument[TurnDocument], raises="not_found bad_cursor")
async def list_turns(
    call: CallMade,
    id: Conversation,
    cursor: Annotated[str | None, Query(description="`next` of an earlier page.", max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 50,
    events: Annotated[bool, Query(description="With the events of each turn.")] = False,
    tries: Annotated[bool, Query(description="Only those at the head that are not history.")] = False,
) -> Response:
    """Its turns in order, with the tries that did not commit: what they cost and what their tools did."""
    info, _ = await call.found(id)
    if tries:
        items, after = await call.backend.turns.tries(info.id), None
    else:
        page = await call.backend.turns.list(info.id, cursor=cursor, limit=limit)
        items, after = page.items, page.next
    return answer({"items": [public_turn(turn, events=events) for turn in items], "next": after})


@calls(
    "GET",
    "/turns/{turn}",
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
    if wait:
        await while_there(call, feed.ended.wait() if feed is not None else ended(call, info.id, turn), wait)
    return answer(public_turn(await call.backend.turns.read(info.id, turn), events=True))


@calls("POST", "/turns/{turn}/cancel", takes=Nothing, gives=TurnDocument, raises="not_found busy no_such_turn")
async def cancel_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Cancel a turn that runs, and wait for its outcome. Too late, it says `committed`."""
    await call.body(Nothing)
    info, _ = await call.found(id)
    if (feed := runs_here(call, info.id, turn)) is not None:
        with suppress(NoSuchTurn):  # it has just ended
            await call.backend.turns.cancel(info.id)
        await feed.ended.wait()
        return answer(public_turn(feed.outcome or await call.backend.turns.read(info.id, turn), events=True))
    found = await call.backend.turns.read(info.id, turn)
    if found.outcome == "running":
        raise Busy(info.id, turn)  # in another process, which alone can stop it
    if found.outcome in {"awaiting_approval", "interrupted"}:
        raise NoSuchTurn(info.id, "cancel", f"turn {turn} does not run; discard it")
    return answer(public_turn(found, events=True))


@calls(
    "POST",
    "/turns/{turn}/discard",
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
    "POST", "/turns/{turn}/settle", takes=Nothing, gives=TurnDocument, raises="not_found no_such_turn outcome_unknown"
)
async def settle_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """After `outcome_unknown`: the turn as it turned out."""
    await call.body(Nothing)
    info, _ = await call.found(id)
    settled = await call.backend.turns.settle(info.id, turn)
    call.services.watching.moved(call.tenant, info.id)
    return answer(public_turn(settled, events=True))


@runs_turn(calls, "/turns/{turn}/approve", takes=Approve, raises=STEERING)
async def approve_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Let calls that wait run, and go on."""
    body = await call.body(Approve)
    this, chosen = await _decided(call, id, turn, "approve", body)
    return await run(call, lambda tell: this(tell).approve(*chosen, by=body.by), stop=body.cancel_on_disconnect)


@runs_turn(calls, "/turns/{turn}/deny", takes=Deny, raises=STEERING)
async def deny_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Refuse calls that wait, and go on: the model is told, with the reason."""
    body = await call.body(Deny)
    this, chosen = await _decided(call, id, turn, "deny", body)
    return await run(
        call, lambda tell: this(tell).deny(*chosen, by=body.by, reason=body.reason), stop=body.cancel_on_disconnect
    )


@runs_turn(
    calls, "/turns/{turn}/retry", takes=RetryTurn, once=True, raises=f"not_found no_such_turn key_reused {RUNNING}"
)
async def retry_turn(call: CallMade, id: Conversation, turn: Turn) -> Response:
    """Run the input of a turn again, from the last good state. One that is still open is discarded."""
    body = await call.body(RetryTurn)
    key, this = call.key, await _opened(call, id, body)
    return await run(call, lambda tell: this(tell).retry(turn, key=key), stop=body.cancel_on_disconnect)


@runs_turn(calls, "/turns/{turn}/resume", takes=ResumeTurn, raises=STEERING)
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


@calls("POST", "/condense", takes=Condense, gives=CondensedDocument, if_match=True, raises=f"not_found stale {RUNNING}")
async def condense(call: CallMade, id: Conversation) -> Response:
    """Let prompts forget the older part of the conversation at once. Recorded as a note; no turn may be open.

    Its agent's condenser does it; for an agent without one, its model writes a summary. A client that goes away changes
    nothing: it is done all the same.
    """
    body = await call.body(Condense)
    info, settings = await call.found(id)
    agent, allow = call.going_on(info, settings, body)
    made = await call.backend.turns.condense(info.id, agent, if_revision=call.if_revision, allow=allow)
    call.services.watching.moved(call.tenant, info.id)
    return answer(condensed_document(made))


# Steering.


async def _opened(call: ApiCall, id: str, body: GoesOn) -> Callable[[Callback], AsyncConversation]:
    """Opens a conversation. The callback that is passed to the result gets the updates of the next turn."""
    info, settings = await call.found(id)
    agent, allow = call.going_on(info, settings, body)
    return lambda tell: AsyncConversation.over(call.backend, info, settings, agent, callbacks=[tell], allow=allow)


async def _decided(
    call: ApiCall, id: str, turn: str, verb: str, body: Approve
) -> tuple[Callable[[Callback], AsyncConversation], list[str | ToolCall]]:
    """The conversation, and the calls that a decision is about. Raises `NoSuchTurn` if no call waits in the turn.

    The decision is about the calls as they wait now, never about a call that comes to wait later. If the client saw a
    call otherwise than it waits, the call is named as the client saw it, and is refused for that.
    """
    this = await _opened(call, id, body)
    info, _ = await call.found(id)
    found = await call.backend.turns.read(info.id, turn)  # raises if there is no such turn at all
    if info.open_turn != turn:
        raise NoSuchTurn(info.id, verb, f"turn {turn} is not open")
    if not found.waiting:
        raise NoSuchTurn(info.id, verb, "no call waits for an approval")
    chosen: list[str | ToolCall] = []
    for given in body.calls or found.waiting:
        if isinstance(given, SeenCall):
            seen = ToolCall(given.id, given.tool, given.arguments, "waiting", response=given.response)
            chosen.append(next((one for one in found.waiting if replace(one, reason=None) == seen), seen))
        else:
            chosen.append(given)
    return this, chosen


def _limits(call: ApiCall, this: AsyncConversation, limits: Limits | None) -> Limits | None:
    """The limits for a turn that goes on. Raises `BadArgument` if they exceed those of one of the server's agents."""
    agent = this.agent
    if limits is None or agent is None or agent.name not in call.services.agents.names():
        return limits
    _, own = taken_over(this._handle.settings, call.services.agents.named(agent.name))
    is_own = own.but(mcp=agent.mcp, llm=agent.llm).to_json() == agent.to_json()  # whatever its servers offer
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
