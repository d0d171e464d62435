"""Sub-agents: made, talked to, waited for and closed. Each is a conversation, and all other calls work with it too."""

from typing import Annotated, TypeAlias

from fastapi import Path, Query, Response
from msgspec.structs import asdict, replace
from starlette.convertors import Convertor, register_url_convertor

from forkpoint.agent.team.tools import Task
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import as_message
from forkpoint.backend.names import with_title
from forkpoint.backend.options import NewTurn, SpawnOptions
from forkpoint.backend.results import Info, Member
from forkpoint.backend.results import Turn as TurnResult
from forkpoint.conversation.sub_agents import part_of_key
from forkpoint.history.roster import ROOT, find
from forkpoint.ids import new_id
from forkpoint.server.api.bodies import Nothing, Spawn, TellAgent, messages_of
from forkpoint.server.api.conversations import AGENT
from forkpoint.server.api.public import public_turn
from forkpoint.server.api.replies import ended, run, while_there
from forkpoint.server.api.turns import RUNNING, runs_turn
from forkpoint.server.http.call import ApiCall, CallMade, Calls, Conversation, answer, etag
from forkpoint.wire.documents import (
    InfoDocument,
    MemberDocument,
    SpawnedDocument,
    TeamDocument,
    info_document,
    member_document,
)


class _Name(Convertor[str]):
    """How a sub-agent is named in an address. Its path has slashes."""

    regex = f"[^/]+|{ROOT}(?:/[^/]+)*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("member", _Name())
calls = Calls("sub-agents", under="/api/conversations/{id}")

SubAgent: TypeAlias = Annotated[
    str, Path(description="A sub-agent's nickname, path or id.", examples=["explorer"], max_length=1024)
]

HELD = "not_found busy turn_open"
"""Errors of calls that write a note on the parent: they need a parent without an open turn."""


@calls(
    "POST",
    "/agents",
    role="use",
    takes=Spawn,
    optional=False,
    gives=SpawnedDocument,
    status=201,
    once=True,
    locates=True,
    tags=True,
    raises=(
        f"{HELD} spawn_refused key_reused not_whole too_large no_agent cannot_resume trust_changed guards_lost "
        f"missing_key shutting_down too_many outcome_unknown {AGENT}"
    ),
)
async def spawn_agent(call: CallMade, id: Conversation) -> Response:
    """Make a sub-agent, and begin its task. It is recorded with a note on its parent, which must have no open turn.

    Its turn goes on by itself: it is fetched, joined, followed and cancelled as any other. Repeated with the same
    Idempotency-Key there is one sub-agent, and one turn that has its task.
    """
    body = await call.body(Spawn)
    if body.budget is not None:
        call.check_role("operate")  # else the family's budget would limit nobody
    task = as_message(body.task)
    info, settings = await call.found(id)
    parent, key, backend = call.agent_of(info, settings), call.key, call.backend
    title, others = with_title(body.title, body.tags)
    options = SpawnOptions(
        id=new_id(),
        task=Task(
            task=body.task,
            role=body.role,
            agent=body.agent if isinstance(body.agent, str) else None,
            model=body.model,
            nickname=body.nickname,
            fork=body.fork,
        ),
        agent=call.agent_given(body.agent) if isinstance(body.agent, dict) else None,
        title=title,
        tags=others,
        budget=body.budget,
    )
    if not body.run:
        child, _ = await backend.team.spawn(info.id, options, parent, key=key)
        call.services.watching.moved(call.tenant, info.id)
        return _spawned(child, None)
    made: list[Info] = []

    async def act(tell: Callback) -> TurnResult:
        # In here, so that nothing is made where there is no room for its turn.
        child, theirs = await backend.team.spawn(info.id, options, parent, key=key)
        made.append(child)
        call.services.watching.moved(call.tenant, info.id)
        agent = call.agent_of(child, theirs)
        return await backend.turns.run(child.id, agent, NewTurn(given=(task,), key=part_of_key(key, "task")), tell)

    feed, _ = await call.services.turns.start(call.tenant, act)
    child, _ = await backend.find(made[0].id)
    return _spawned(child, feed.turn or feed.joined)


@calls("GET", "/agents", role="read", gives=TeamDocument, raises="not_found")
async def list_members(call: CallMade, id: Conversation) -> Response:
    """The sub-agents that a conversation's history knows of, and how they stand."""
    info, _ = await call.found(id)
    members = await call.backend.team.members(info.id)
    return answer(TeamDocument(tuple([await _shown(call, member) for member in members])))


@runs_turn(
    calls,
    "/agents/{agent:member}/messages",
    role="use",
    takes=TellAgent,
    optional=False,
    once=True,
    raises="not_found no_such_agent agent_closed spawn_refused key_reused nothing_to_run not_whole too_large "
    f"{RUNNING}",
)
async def tell_agent(call: CallMade, id: Conversation, agent: SubAgent) -> Response:
    """Run a turn of a sub-agent: it commits, waits for an approval, or fails and nothing has moved.

    One that belongs to another branch of the conversation is forked first.
    """
    body = await call.body(TellAgent)
    info, _ = await call.found(id)
    messages = messages_of(body, agent, call.services.settings.max_messages)
    key, backend = call.key, call.backend

    async def act(tell: Callback) -> TurnResult:
        child, settings = await backend.team.reach(info.id, agent, key=part_of_key(key, "reach"))
        if key is not None:  # perhaps of a client that gave up waiting, and asks again
            await call.services.turns.until_left(call.tenant, child.id)
        call.services.watching.moved(call.tenant, info.id)
        return await backend.turns.run(
            child.id, call.agent_of(child, settings), NewTurn(given=tuple(messages), key=key), tell
        )

    return await run(call, act, stop=body.cancel_on_disconnect)


@calls(
    "POST",
    "/agents/{agent:member}/reach",
    role="use",
    takes=Nothing,
    gives=InfoDocument,
    once=True,
    tags=True,
    raises=f"{HELD} no_such_agent agent_closed spawn_refused key_reused",
)
async def reach_agent(call: CallMade, id: Conversation, agent: SubAgent) -> Response:
    """The conversation in which a sub-agent is talked to from here. One of another branch is forked for that."""
    await call.body(Nothing)
    info, _ = await call.found(id)
    child, _ = await call.backend.team.reach(info.id, agent, key=call.key)
    call.services.watching.moved(call.tenant, info.id)
    return answer(info_document(child), ETag=etag(child))


@calls(
    "POST",
    "/agents/{agent:member}/close",
    role="use",
    takes=Nothing,
    gives=MemberDocument,
    raises=f"{HELD} no_such_agent",
)
async def close_agent(call: CallMade, id: Conversation, agent: SubAgent) -> Response:
    """Close a sub-agent: what runs there is cancelled. It can still be read and forked."""
    await call.body(Nothing)
    info, _ = await call.found(id)
    member = await call.backend.team.close(info.id, agent)
    call.services.watching.moved(call.tenant, info.id)
    return answer(await _shown(call, member))


@calls("GET", "/agents/{agent:member}", role="read", gives=MemberDocument, raises="not_found no_such_agent")
async def get_member(
    call: CallMade,
    id: Conversation,
    agent: SubAgent,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait until nothing runs there.")] = 0,
) -> Response:
    """One sub-agent, and how it stands."""
    info, _ = await call.found(id)
    member = find(await call.backend.team.members(info.id), agent, info.id)
    if wait and member.status == "running":
        await while_there(call, _at_rest(call, member.conversation), wait)
        member = find(await call.backend.team.members(info.id), agent, info.id)
    return answer(await _shown(call, member))


async def _at_rest(call: ApiCall, conversation: str) -> None:
    """Waits until no turn runs in a conversation, in any process; or until this server stops."""
    while (info := (await call.backend.find(conversation))[0]).status == "running" and info.open_turn is not None:
        if (feed := call.services.turns.feed(call.tenant, conversation)) is not None:
            with feed.awaited():
                await feed.ended.wait()
        else:
            await ended(call, conversation, info.open_turn)
        if call.services.turns.draining:
            return


async def _shown(call: ApiCall, member: Member) -> MemberDocument:
    """A sub-agent for the outside: without the words of an error that is the server's own affair."""
    if member.error is not None and member.turn is not None:
        turn = public_turn(await call.backend.team.turn(member.turn))
        if turn.error is not None:
            member = replace(member, error=turn.error.message)
    return member_document(member)


def _spawned(child: Info, turn: str | None) -> Response:
    document = SpawnedDocument(**asdict(info_document(child)), turn=turn)
    return answer(document, 201, Location=f"/api/conversations/{child.id}", ETag=etag(child))
