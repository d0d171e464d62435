"""A family of 33: a parent, its 8 children, and 3 of each of those, as a provider and as the store see them.

Forked ones start with exactly their parent's blocks and show its key; fresh ones start anew and show their own. All
that anybody was paid is counted once.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import anyio
import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.conversation.faults.judge import check_pairing
from tests.conversation.support.agents import results, said
from tests.conversation.support.families import (
    WIRES,
    Explorers,
    agent_at,
    answers_in,
    asks_for,
    calls_in,
    family_task,
    first_requests,
    shown,
    task_of,
    with_response,
)

from forkpoint import AsyncConversation, SubAgents
from forkpoint.backend.results import Stats
from forkpoint.conversation import Branch, Info, Turn
from forkpoint.errors import SpawnRefused
from forkpoint.events import Event, Text, ToolResult, Usage
from forkpoint.llm import CacheIdentity, own_identity
from forkpoint.store.values import Verification
from forkpoint.testing import Recorded

CHILDREN, GRANDCHILDREN = 8, 3
ALL = 1 + CHILDREN + CHILDREN * GRANDCHILDREN
HELLO = "Hello."


class Member(Struct, frozen=True):
    """One of the family, as the store has it."""

    info: Info
    stats: Stats
    turns: Sequence[Turn]
    events: Sequence[Event]


class Family(Struct, frozen=True):
    """A family that has done its work: what was asked for it, and what is left of it."""

    wire: str
    task: str
    turn: Turn  # the parent's
    requests: list[Recorded]
    first: dict[str, Recorded]  # the first request for each task
    used: dict[str, Usage]  # and what it used
    paid: dict[str, Usage]  # what was reported for each task
    members: list[Member]  # the parent first, and each before its own
    verified: Verification

    @property
    def root(self) -> Member:
        return self.members[0]

    def given(self) -> Iterator[tuple[str, str]]:
        """Each task that was given to somebody, and the one that it was given for."""
        waiting = [self.task]
        while waiting:
            task = waiting.pop()
            for given in json.loads(task)["give"] if task.startswith("{") else ():
                yield given, task
                waiting.append(given)


async def live(wire: str, fork: str) -> Family:
    model, task = Explorers(same_ids=wire == "responses"), family_task(CHILDREN, GRANDCHILDREN, fork=fork)
    with model.serve() as server:
        async with AsyncConversation(agent_at(server, wire), store="memory:") as root:
            await root.run(HELLO)
            turn = await root.run(task)
            (tree,) = await root.tree()
            members = [await read(info, root) for info in everybody(tree)]
            verified = await AsyncConversation.verify_store(store="memory:")
        heard = server.requests
    return Family(wire, task, turn, heard, first_requests(heard), model.first, dict(model.paid), members, verified)


def everybody(branch: Branch) -> Iterator[Info]:
    yield branch.info
    for below in branch.branches:
        yield from everybody(below)


async def read(info: Info, root: AsyncConversation) -> Member:
    """A member, as somebody who has only its id opens it."""
    async with await AsyncConversation.open(info.id, agent=root.agent, store="memory:") as one:
        return Member(await one.info(), await one.stats(), (await one.turns()).items, await one.events())


@functools.cache
def lived(wire: str, fork: str) -> Family:
    """What is left of a family. It has lived once, for all tests."""
    return anyio.run(live, wire, fork)


@pytest.fixture(params=WIRES)
def forked(request: pytest.FixtureRequest) -> Family:
    return lived(request.param, "all")


@pytest.fixture(params=WIRES)
def fresh(request: pytest.FixtureRequest) -> Family:
    return lived(request.param, "none")


@pytest.fixture(params=[(wire, fork) for fork in ("all", "none") for wire in WIRES], ids="-".join)
def family(request: pytest.FixtureRequest) -> Family:
    return lived(*request.param)


def shows(identity: CacheIdentity, wire: str) -> tuple[str | None, str]:
    """What a request with this identity is to show. The messages wire has no key."""
    return (None if wire == "messages" else identity.key), identity.session


def reported(usage: Usage) -> Usage:
    """What a provider reports: it knows nothing of our prices."""
    return replace(usage, nanodollars=0, unpriced=0)


def total(used: Iterable[Usage]) -> Usage:
    return sum(used, Usage())


# Forked.


def test_every_forked_member_starts_with_exactly_its_parents_blocks_and_appends(forked: Family) -> None:
    assert len(dict(forked.given())) == ALL - 1
    for task, of in forked.given():
        request, before = forked.first[task], with_response(forked.requests, of)
        assert request.blocks[: len(before)] == before, f"{task} starts with other blocks than {of} had"
        opened = calls_in(before[len(forked.first[of].blocks) :])
        assert len(opened) == (CHILDREN if of == forked.task else GRANDCHILDREN), "they came in one response"
        added = request.blocks[len(before) :]
        assert answers_in(added) == opened, "an open call has no answer, or they stand in another order"
        assert len(added) == len(opened) + 1, "more was appended than the answers and the task"
        assert task_of(request) == task


def test_in_no_request_of_a_forked_family_a_call_dangles(forked: Family) -> None:
    for request in forked.requests:
        assert answers_in(request.blocks) == calls_in(request.blocks)


def test_all_of_a_forked_family_show_the_parents_key_and_session(forked: Family) -> None:
    own = own_identity(forked.root.info.id)
    assert {shown(request) for request in forked.requests} == {shows(own, forked.wire)}
    for one in forked.members[1:]:
        assert (one.info.cache.key, one.info.cache.session) == (own.key, own.session)
        assert (one.info.cache.inherited_from, one.info.cache.dropped) == (one.info.parent, None)


def test_every_forked_member_finds_its_parents_prompt_in_the_cache(forked: Family) -> None:
    for task, of in forked.given():
        assert forked.used[task].cached >= 0.95 * forked.used[of].input, f"{task}: {forked.used[task]}"


# Fresh.


def test_every_fresh_member_knows_nothing_of_its_parents_history(fresh: Family) -> None:
    hello = fresh.first[HELLO]
    assert len(dict(fresh.given())) == ALL - 1
    for task, _ in fresh.given():
        request = fresh.first[task]
        assert request.blocks[:-1] == hello.blocks[:-1]
        assert task_of(request) == task


def test_every_fresh_member_shows_a_key_of_its_own_and_no_other(fresh: Family) -> None:
    ids = {one.info.id for one in fresh.members}
    assert {shown(request) for request in fresh.first.values()} == {shows(own_identity(id), fresh.wire) for id in ids}
    assert {one.info.cache for one in fresh.members} == {own_identity(id) for id in ids}
    assert len({own_identity(id).key for id in ids}) == len(ids) == ALL
    for task, first in fresh.first.items():
        keys = {shown(request) for request in fresh.requests if task_of(request) == task}
        assert keys == {shown(first)}, f"{task} was asked for with several keys"
    assert shown(fresh.first[fresh.task]) == shown(fresh.first[HELLO]), "the parent took a child's key"


# Both.


def test_all_that_was_paid_is_counted_once_and_where_it_was_spent(family: Family) -> None:
    paid = {**family.paid, family.task: family.paid[family.task] + family.paid[HELLO]}  # both are the parent's
    del paid[HELLO]
    assert reported(family.root.stats.family) == total(paid.values())
    assert reported(family.root.stats.spent) == paid[family.task]
    for one in family.members:
        assert reported(one.stats.spent) == paid[task_given_to(one, family)], f"{one.info.path} has another's bill"
        assert one.stats.family == family.root.stats.family
        assert total(turn.usage for turn in one.turns if turn.conversation == one.info.id) == one.stats.spent


def test_in_the_store_every_member_stands_where_it_belongs(family: Family) -> None:
    paths = {one.info.id: one.info.path or "/root" for one in family.members}
    assert len(paths) == ALL
    names = ["agent", *(f"agent-{n}" for n in range(2, CHILDREN + 1))]
    below = [f"/root/{child}/{name}" for child in names for name in names[:GRANDCHILDREN]]
    assert sorted(paths.values()) == sorted(["/root", *(f"/root/{child}" for child in names), *below])
    for one in family.members[1:]:
        assert one.info.parent is not None
        parent, path = paths[one.info.parent], paths[one.info.id]
        assert path == f"{parent}/{one.info.nickname}"
        assert one.info.depth == path.count("/") - 1
        assert (one.info.lineage.kind, one.info.lineage.source) == ("sub_agent", one.info.parent)
        assert (one.info.family, one.info.status) == (family.root.info.id, "idle")


def test_in_the_store_every_call_is_paired_and_nothing_is_wrong(family: Family) -> None:
    for one in family.members:
        check_pairing(one.events)
    assert family.verified.flaws == ()
    assert family.verified.conversations == ALL


def test_every_answer_reaches_the_one_who_asked(family: Family) -> None:
    places = [task for task, _ in family.given() if not task.startswith("{")]
    assert [place for place in places if f"I saw {place}." not in family.turn.text] == []


def task_given_to(member: Member, family: Family) -> str:
    return family.task if member.info.parent is None else said_last(member)


def said_last(member: Member) -> str:
    """The newest words of a user in a conversation."""
    return [words for role, words in said(member.events) if role == "user"][-1]


# As far as it goes.


async def spawned(task: str, **limits: Any) -> tuple[list[ToolResult], list[Info]]:
    """What a parent is told of the sub-agents that it asked for, and all that there are."""
    with Explorers().serve() as server:
        async with AsyncConversation(agent_at(server, **limits), store="memory:") as root:
            turn = await root.run(task)
            (tree,) = await root.tree()
            return results(turn.events), list(everybody(tree))


@pytest.mark.anyio
async def test_as_many_sub_agents_as_may_be_are_made_and_not_one_more() -> None:
    told, infos = await spawned(asks_for("a", "b", "c"), most=3)
    assert [one.status for one in told] == ["done"] * 4
    assert len(infos) == 4
    told, infos = await spawned(asks_for("a", "b", "c", "d"), most=3)
    assert [one.status for one in told] == ["done"] * 3 + ["failed", "done"]
    assert "3 sub-agents, which is the most" in words(told[3])
    assert len(infos) == 4, "one was made that was refused"


@pytest.mark.anyio
async def test_a_sub_agent_at_the_greatest_depth_makes_none_and_one_above_it_does() -> None:
    deep = asks_for(asks_for(asks_for("too deep")))
    for depth in (1, 2):
        told, infos = await spawned(deep, depth=depth)
        assert [info.depth for info in infos] == list(range(depth + 1))
        assert f"sub-agents go {depth} deep at most" in words(told[-1]), "nobody above heard why"
    _, infos = await spawned(deep, depth=3)
    assert [info.path for info in infos] == [None, "/root/agent", "/root/agent/agent", "/root/agent/agent/agent"]


@pytest.mark.anyio
async def test_an_agent_that_may_go_deeper_by_itself_goes_no_deeper_than_whom_it_works_for() -> None:
    with Explorers().serve() as server:
        keen = agent_at(server, depth=9, most=9)
        lead = keen.replace(sub_agents=SubAgents(agents={"keen": keen}, depth=1))
        async with AsyncConversation(lead, store="memory:") as root:
            turn = await root.run(asks_for(asks_for("too deep", fork="none"), fork="none", agent="keen"))
            (tree,) = await root.tree()
    assert [info.depth for info in everybody(tree)] == [0, 1]
    assert "sub-agents go 1 deep at most" in turn.text


@pytest.mark.anyio
async def test_closing_a_sub_agent_makes_room_for_another() -> None:
    with Explorers().serve() as server:
        async with AsyncConversation(agent_at(server, most=2), store="memory:") as root:
            await root.run(asks_for("a", "b"))
            with pytest.raises(SpawnRefused, match="2 sub-agents, which is the most"):
                await root.spawn_agent("c")
            await root.close_agent("agent")
            async with await root.spawn_agent("c") as child:
                assert (await child.run()).text == "I saw c."
            with pytest.raises(SpawnRefused, match="2 sub-agents, which is the most"):
                await root.spawn_agent("d")
            assert [one.status for one in await root.list_agents()] == ["closed", "idle", "idle"]


def words(result: ToolResult) -> str:
    return "".join(part.text for part in result.parts if isinstance(part, Text))
