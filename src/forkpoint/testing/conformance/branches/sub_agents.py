"""Sub-agents: conversations that a call spawns once, empty or on top of their parent's path."""

from collections.abc import Sequence
from functools import partial

import anyio
import pytest
from msgspec.structs import replace

from forkpoint.errors import AlreadyExists, BadArgument, BadPosition, Busy, NotFound, Stale, TooLarge, Unpaired
from forkpoint.events import NewEvent, Position, Usage
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import (
    Announcement,
    Collected,
    IdempotencyKey,
    Lineage,
    NewConversation,
    Onto,
    OpenTurn,
    StoredConversation,
)
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says, thinks


class SubAgentConformance(Conformance):
    async def test_a_conversation_and_what_another_notes_of_it_are_written_together_or_not_at_all(
        self, store: Store
    ) -> None:
        parent = await create(store)
        key = IdempotencyKey("k", b"r")

        def child() -> NewConversation:
            return NewConversation(id=new_id(), family=parent.family, lineage=Lineage("sub_agent", parent.id))

        def told(revision: int | None) -> Announcement:
            return Announcement(conversation=parent.id, events=(says("a child"),), if_revision=revision, by="ann")

        with pytest.raises(Stale):
            await store.create(child(), [says("hello")], key=key, announced=told(parent.revision + 7))
        turn = await begin(store, parent.id)
        with pytest.raises(Busy):
            await store.create(child(), key=key, announced=told(None))
        await store.cancel(turn)
        assert await store.made_with(key, "create") is None
        assert [one async for one in every(partial(store.conversations, parent=parent.id))] == []
        assert await store.events(parent.id) == []
        made = await store.create(child(), [says("hello")], key=key, announced=told(parent.revision))
        again = await store.create(child(), [says("hello")], key=key, announced=told(parent.revision))
        assert again == made, "a repeat makes nothing and notes nothing"
        assert texts(await store.events(parent.id)) == ["a child"]
        assert (await store.turn(made.id)).by == "ann", "the note has the id of what was made"
        assert texts(await store.events(made.id)) == ["hello"]
        assert (await store.verify()).ok

    async def test_a_sub_agent_begins_where_its_parents_turn_stands_and_has_its_first_note(self, store: Store) -> None:
        parent = await create(store)
        one = await run(store, parent.id, [*exchange("one"), remembers("k", "1")], Usage(calls=1, input=5))
        turn = await store.journal(await begin(store, parent.id), [says("look"), calls("c1", response=1)])
        before = await store.read(parent.id)
        child = await store.create(spawned(before, turn.id, onto=Onto(parent.id, one.last)), copies(turn.id))
        assert await store.read(child.id) == child
        assert (child.family, child.status, child.draft) == (parent.family, "idle", False)
        assert child.lineage == Lineage("sub_agent", parent.id, one.last, turn.id, "c1")
        assert (child.own_from, child.inherited, child.spent) == (3, Usage(calls=1, input=5), Usage())
        assert (child.settings, child.cache) == ('{"child":1}', '{"key":"child"}')
        assert texts(await store.events(child.id)) == [
            "one",
            "You said: one",
            "state_change",
            "look",
            "tool_call",
            "seen",
        ]
        assert (await store.events(child.id))[:3] == await store.events(parent.id)
        assert [turn.kind for turn in (await store.turns(child.id)).items] == ["turn", "note"]
        assert (await store.state(child.id)).get("k") == "1"
        assert await store.read(parent.id) == before, "a sub-agent changed its parent"
        assert (await store.verify()).ok
        await run(store, child.id, "the task")
        await store.commit(turn, [returns("c1"), answers("done", response=2)])
        assert texts(await store.events(parent.id))[3:] == ["look", "tool_call", "seen", "done"]
        assert texts(await store.events(child.id))[6:] == ["the task", "You said: the task"]
        report = await store.verify(child.id, head_digest=one.head.digest)
        assert report.ok, f"the path does not lead on from its parent's: {report.flaws}"

    async def test_copies_say_which_step_of_the_parents_turn_they_are_of(self, store: Store) -> None:
        parent = await create(store)
        turn = await store.journal(await begin(store, parent.id), [says("look"), calls("c1", response=1)])
        child = await store.create(spawned(parent, turn.id, onto=Onto(parent.id, None)), copies(turn.id))
        found = [event.envelope.origin for event in await store.events(child.id)]
        assert found == [f"{turn.id}/1", f"{turn.id}/2", None]
        assert (await store.verify(child.id)).ok

    async def test_every_open_call_is_answered_in_the_sub_agents_own_branch(self, store: Store) -> None:
        parent = await create(store)
        said = [says("look"), thinks("hm", response=1), calls("c1", response=1), calls("c2", response=1)]
        turn = await store.journal(await begin(store, parent.id), said)
        for call, other in (("c1", "c2"), ("c2", "c1")):
            new = spawned(parent, turn.id, call, onto=Onto(parent.id, None))
            with pytest.raises(Unpaired):
                await store.create(new, [*said, returns(call, "you are a sub-agent")])
            with pytest.raises(NotFound):
                await store.read(new.id)
            events = [*said, returns(other, "not here"), returns(call, "you are a sub-agent")]
            child = await store.create(new, events)
            kinds = [(event.kind, event.envelope.call_id) for event in await store.events(child.id)]
            assert kinds[2:] == [("tool_call", "c1"), ("tool_call", "c2"), ("tool_result", "c1"), ("tool_result", "c2")]
        await store.commit(turn, [returns("c2"), returns("c1"), answers("done", response=2)])
        assert (await store.verify()).ok

    async def test_a_sub_agent_may_begin_on_an_open_client_call_and_answer_it(self, store: Store) -> None:
        parent = await create(store)
        one = await run(store, parent.id, [says("look"), calls("c1", client=True, response=1)])
        turn = await begin(store, parent.id)
        new = spawned(parent, turn.id, "c2", onto=Onto(parent.id, one.last))
        with pytest.raises(Unpaired):
            await store.create(new, [says("not before it is answered")])
        child = await store.create(new, [returns("c1"), calls("c2", response=2), returns("c2")])
        assert child.head.open_calls.client == ()
        assert (await store.read(parent.id)).head.open_calls.client == ("c1",)
        assert (await store.verify()).ok

    async def test_a_sub_agent_that_is_refused_leaves_nothing_and_its_call_free(self, store: Store) -> None:
        parent = await create(store)
        one = await run(store, parent.id, "one")
        turn, onto = new_id(), Onto(parent.id, one.last)
        new = spawned(parent, turn, onto=onto, name="child")
        key = IdempotencyKey("spawn", b"1")
        with pytest.raises(Unpaired):
            await store.create(new, [calls("c1", response=1)], key=key)
        with pytest.raises(TooLarge):
            await store.create(replace(new, title="x" * 10_000))
        with pytest.raises(NotFound):
            await store.find("child")
        assert (await store.conversations(parent=parent.id)).items == ()
        child = await store.create(new, [says("whole")], key=key)
        assert (child.name, child.head.ordinal) == ("child", 3)
        assert (await store.verify()).ok

    async def test_asked_for_again_the_sub_agent_of_a_call_is_as_it_is(self, store: Store) -> None:
        parent = await create(store)
        one = await run(store, parent.id, "one")
        await run(store, parent.id, "two")
        turn = new_id()
        first = await store.create(spawned(parent, turn, onto=Onto(parent.id, one.last)), [says("whole")])
        again = spawned(parent, turn, onto=Onto(parent.id, None))
        assert await store.create(again, [says("another")]) == first
        assert await store.create(replace(again, id=first.id)) == first
        assert await store.create(replace(again, onto=Onto(new_id(), None))) == first, "where is decided already"
        await run(store, first.id, "on")
        later = await store.read(first.id)
        assert await store.create(again, [says("another")]) == later
        other = await store.create(spawned(parent, turn, "c2", onto=Onto(parent.id, one.last)))
        assert other.id != first.id
        assert (await store.verify()).ok

    async def test_a_sub_agent_that_was_made_without_a_note_gets_none_when_it_is_asked_for_again(
        self, store: Store
    ) -> None:
        parent = await create(store)
        new = spawned(parent, new_id(), onto=Onto(parent.id, None))
        first = await store.create(new)
        assert await store.create(new, [says("late")]) == first
        assert await store.events(first.id) == []

    async def test_the_same_key_makes_one_sub_agent_where_no_call_asked_for_it(self, store: Store) -> None:
        parent = await create(store)
        one = await run(store, parent.id, "one")
        key, onto = IdempotencyKey("spawn", b"1"), Onto(parent.id, one.last)
        first = await store.create(spawned(parent, onto=onto), [says("note")], key=key)
        assert first.lineage == Lineage("sub_agent", parent.id, one.last)
        assert await store.create(spawned(parent, onto=onto), [says("note")], key=key) == first
        second = await store.create(spawned(parent, onto=onto), [says("note")])
        assert second.id != first.id, "no call, so nothing says that it is the same"
        with pytest.raises(AlreadyExists):
            await store.create(replace(spawned(parent, onto=onto), id=first.id), [says("note")])
        assert texts(await store.events(first.id)) == ["one", "You said: one", "note"]

    @pytest.mark.parametrize(
        "lineage",
        [
            Lineage("sub_agent"),
            Lineage("sub_agent", None, None, new_id(), "c1"),
            Lineage("sub_agent", new_id(), None, new_id(), None),
            Lineage("sub_agent", new_id(), None, None, "c1"),
            Lineage("root"),
        ],
        ids=["no parent", "no parent of a call", "no call", "no turn", "a root on another's path"],
    )
    async def test_half_a_lineage_is_refused(self, store: Store, lineage: Lineage) -> None:
        parent = await create(store)
        with pytest.raises(BadArgument, check=BadArgument.bad_lineage.made):
            await store.create(
                NewConversation(id=new_id(), family=parent.id, lineage=lineage, onto=Onto(parent.id, None))
            )
        assert len((await store.conversations()).items) == 1

    async def test_a_sub_agent_may_begin_at_any_place_where_a_fork_may(self, store: Store) -> None:
        parent = await create(store)
        steps = [says("look"), remembers("k", "1"), calls("c1", response=1), returns("c1"), remembers("k", "2")]
        one = await run(store, parent.id, [*steps, answers("done", response=2)], Usage(calls=1, input=5))
        two = await run(store, parent.id, "two", Usage(calls=1, input=7))
        segment = one.first.segment
        for ordinal, value, inherited in (
            (0, None, 0),
            (1, None, 0),
            (4, "1", 0),
            (5, "2", 0),
            (6, "2", 5),
            (8, "2", 12),
        ):
            place = Position(segment, ordinal) if ordinal else None
            child = await store.create(spawned(parent, onto=Onto(parent.id, place)), [says("note")])
            assert (child.lineage.at, child.own_from, child.inherited.input) == (place, ordinal, inherited)
            assert len(await store.events(child.id)) == ordinal + 1
            assert (await store.state(child.id)).get("k") == value
            await run(store, child.id, "on", Usage(calls=1, input=100))
            assert (await store.state(child.id)).get("k") == value
            assert (await store.read(child.id)).spent == Usage(calls=1, input=100)
        empty = await store.create(spawned(parent, onto=Onto(parent.id, two.last)))
        assert (empty.head, empty.revision) == ((await store.read(parent.id)).head, 0)
        with pytest.raises(BadPosition) as refused:
            await store.create(spawned(parent, onto=Onto(parent.id, Position(segment, 3))))
        assert refused.value.nearest == (f"{segment}-2", f"{segment}-4")
        assert (await store.verify()).ok

    async def test_a_place_that_is_not_there_for_the_family_is_refused(self, store: Store) -> None:
        parent, other = await create(store), await create(store)
        one = await run(store, parent.id, "one")
        elsewhere = await run(store, other.id, "elsewhere")
        for place in (elsewhere.last, Position(10_000, 1), Position(1 << 40, 1), Position(one.last.segment, 0)):
            with pytest.raises(BadPosition):
                await store.create(spawned(parent, onto=Onto(parent.id, place)))
        draft = await store.fork(parent.id, fork_of(), draft=True)
        theirs = await create(store.within("other"))
        for branch in (other.id, new_id(), "rubbish", draft.id, theirs.id):
            for at in (None, elsewhere.last if branch == other.id else one.last):
                with pytest.raises(NotFound):
                    await store.create(spawned(parent, onto=Onto(branch, at)))
        with pytest.raises(NotFound):
            await store.create(replace(spawned(parent, onto=Onto(parent.id, one.last)), family=None))
        with pytest.raises(NotFound):
            await store.within("other").create(spawned(parent, onto=Onto(parent.id, one.last)))
        assert (await store.conversations(parent=parent.id)).items == ()

    async def test_a_sub_agent_begins_where_its_parents_turn_stands_elsewhere(self, store: Store) -> None:
        parent = await create(store)
        one = await run(store, parent.id, "one", Usage(calls=1, input=1))
        branch = await store.fork(parent.id, fork_of())
        there = await run(store, branch.id, "there", Usage(calls=1, input=2))
        await run(store, parent.id, "two", Usage(calls=1, input=4))
        with pytest.raises(BadPosition):
            await store.create(spawned(parent, onto=Onto(parent.id, there.last)))
        turn = await store.begin(parent.id, new_id(), onto=Onto(branch.id, there.last))
        assert isinstance(turn, OpenTurn)
        with pytest.raises(BadPosition):
            await store.create(spawned(parent, onto=Onto(parent.id, there.first)))
        early = await store.create(spawned(parent, turn.id, "c1", onto=Onto(parent.id, there.last)), [says("early")])
        await store.delete(branch.id)
        await store.collect()
        late = await store.create(spawned(parent, turn.id, "c2", onto=Onto(parent.id, there.last)), [says("late")])
        for child in (early, late):
            assert child.lineage.at == there.last
            assert (child.own_from, child.inherited.input, child.spent.input) == (4, 3, 0)
        await store.cancel(turn)
        with pytest.raises(BadPosition):
            await store.create(spawned(parent, onto=Onto(parent.id, there.last)))
        await store.collect()
        history = ["one", "You said: one", "there", "You said: there"]
        assert texts(await store.events(late.id)) == [*history, "late"]
        await run(store, early.id, "on", Usage(calls=1, input=8))
        assert texts(await store.events(early.id)) == [*history, "early", "on", "You said: on"]
        assert (await store.usage(parent.id)).input == 15
        assert one.last in await store.path(early.id)
        assert (await store.verify()).ok

    async def test_a_sub_agent_stands_on_what_was_rewound_away_forked_or_spawned_and_outlives_it(
        self, store: Store
    ) -> None:
        parent = await create(store)
        one = await run(store, parent.id, "one", Usage(calls=1, input=1))
        two = await run(store, parent.id, [*exchange("two"), remembers("k", "2")], Usage(calls=1, input=2))
        fork = await store.fork(parent.id, fork_of(), at=one.turn)
        in_fork = await run(store, fork.id, "in the fork", Usage(calls=1, input=4))
        sub_agent = await store.create(spawned(parent, onto=Onto(parent.id, one.last)), [says("note")])
        in_child = await run(store, sub_agent.id, "in the child", Usage(calls=1, input=8))
        _, aside = await store.rewind(parent.id, fork_of(), at=one.turn)
        assert aside is not None
        with pytest.raises(BadPosition):
            await store.create(spawned(parent, onto=Onto(parent.id, two.last)))
        made: dict[str, list[str]] = {}
        for branch, done in ((aside, two), (fork, in_fork), (sub_agent, in_child)):
            child = await store.create(spawned(parent, onto=Onto(branch.id, done.last)), [says("on top")])
            assert child.lineage == Lineage("sub_agent", parent.id), "their paths part elsewhere, if not at the start"
            assert child.spent == Usage()
            made[child.id] = texts(await store.events(child.id))
            await store.delete(branch.id)
        assert await store.usage(parent.id) == Usage(calls=4, input=15)
        assert (await store.collect()).events == 0, "the collector took what a sub-agent stands on"
        assert (await store.verify()).ok
        for id, before in made.items():
            assert texts(await store.events(id)) == before
            await run(store, id, "on", Usage(calls=1, input=16))
            assert len(await store.events(id)) == len(before) + 2
        assert await store.usage(parent.id) == await store.usage() == Usage(calls=7, input=63)
        for id in made:
            await store.delete(id)
        await store.collect()
        assert len(await store.events(parent.id)) == 2
        assert await store.collect() == Collected()
        assert (await store.verify()).ok

    async def test_deleting_a_parent_takes_its_sub_agents_along_wherever_their_paths_begin(self, store: Store) -> None:
        other = await create(store)
        one = await run(store, other.id, "one", Usage(calls=1, input=1))
        parent = await store.fork(other.id, fork_of())
        in_parent = await run(store, parent.id, "in the parent", Usage(calls=1, input=2))
        below = await store.create(spawned(parent, new_id(), onto=Onto(parent.id, in_parent.last)), [says("below")])
        beside = await store.create(spawned(parent, onto=Onto(other.id, one.last)), [says("beside")])
        in_child = await run(store, below.id, "in the child", Usage(calls=1, input=4))
        grandchild = await store.create(spawned(below, onto=Onto(below.id, in_child.last)), [says("grandchild")])
        built_on = await store.create(spawned(other, onto=Onto(below.id, in_child.last)), [says("built on it")])
        fork = await store.fork(below.id, fork_of(), at=in_child.turn)
        history = texts(await store.events(fork.id))
        deleted = await store.delete(parent.id)
        assert set(deleted.conversations) == {parent.id, below.id, beside.id, grandchild.id}
        await store.collect()
        assert texts(await store.events(fork.id)) == history
        assert texts(await store.events(built_on.id)) == [*history, "built on it"]
        await run(store, fork.id, "on", Usage(calls=1, input=8))
        await run(store, built_on.id, "on", Usage(calls=1, input=16))
        assert await store.usage(other.id) == Usage(calls=5, input=31)
        assert (await store.verify()).ok

    async def test_a_draft_may_begin_on_top_of_its_parent_and_run_out(self, store: Store, clock: ManualClock) -> None:
        parent = await create(store)
        one = await run(store, parent.id, "one", Usage(calls=1, input=1))
        turn, onto = new_id(), Onto(parent.id, one.last)
        new = spawned(parent, turn, onto=onto)
        held = await store.begin(new.id, new_id(), create=new)
        assert isinstance(held, OpenTurn)
        assert held.base.position == one.last
        draft = await store.read(new.id)
        assert (draft.draft, draft.lineage.at, draft.own_from) == (True, one.last, 2)
        assert (await store.conversations(parent=parent.id)).items == ()
        again = spawned(parent, turn, onto=onto)
        with pytest.raises(AlreadyExists) as refused:
            await store.begin(again.id, new_id(), create=again)
        assert new.id in str(refused.value), "it does not say which sub-agent the call has"
        with pytest.raises(NotFound):
            await store.begin(again.id, new_id(), create=spawned(parent, onto=Onto(new_id(), None), id=again.id))
        left = spawned(parent, onto=onto)
        left_turn = await store.begin(left.id, new_id(), create=left)
        assert isinstance(left_turn, OpenTurn)
        await store.cancel(left_turn)
        await store.commit(held, exchange("the task"), usage=Usage(calls=1, input=2))
        assert [record.id for record in (await store.conversations(parent=parent.id)).items] == [new.id]
        clock.pass_by(400 * 24 * 3600)
        assert await store.collect() == Collected(drafts=1)
        assert await store.usage(parent.id) == Usage(calls=2, input=3)
        assert (await store.verify()).ok

    async def test_the_sub_agents_of_a_conversation_are_listed_page_by_page(self, store: Store) -> None:
        parent, other = await create(store), await create(store)
        fork = await store.fork(parent.id, fork_of())
        children = [await store.create(spawned(parent, new_id())) for _ in range(5)]
        tagged = await store.create(spawned(parent, tags=(("kind", "explorer"),), onto=Onto(parent.id, None)))
        grandchild = await store.create(spawned(children[0], new_id()))
        others = await store.create(spawned(other, new_id()))
        draft = spawned(parent)
        await store.begin(draft.id, new_id(), create=draft)
        running = await begin(store, children[1].id)
        wanted = [tagged.id, *(child.id for child in reversed(children))]

        async def listed(store: Store, limit: int = 50, **which: object) -> list[str]:
            read = partial(store.conversations, **which)  # type: ignore[arg-type]
            return [record.id async for record in every(read, limit=limit)]

        assert await listed(store, parent=parent.id) == wanted
        assert await listed(store, limit=2, parent=parent.id) == wanted
        assert await listed(store, parent=children[0].id) == [grandchild.id]
        assert await listed(store, parent=parent.id, tags=(("kind", "explorer"),)) == [tagged.id]
        assert await listed(store, parent=parent.id, status="running") == [children[1].id]
        assert await listed(store, parent=parent.id, family=other.id) == []
        assert await listed(store, parent=parent.id, sub_agents=False) == []
        assert await listed(store, parent=fork.id) == await listed(store, parent=new_id()) == []
        assert await listed(store.within("other"), parent=parent.id) == []
        with pytest.raises(NotFound):
            await listed(store, parent="rubbish")
        assert await listed(store, sub_agents=False) == [fork.id, other.id, parent.id]
        assert await listed(store, limit=1, sub_agents=False) == [fork.id, other.id, parent.id]
        assert await listed(store, family=parent.id, sub_agents=False) == [fork.id, parent.id]
        assert others.id in await listed(store)
        await store.cancel(running)

    async def test_of_many_that_ask_at_once_for_the_sub_agent_of_a_call_all_get_the_same(
        self, store: Store, second: Store
    ) -> None:
        parent = await create(store)
        one = await run(store, parent.id, "one")
        turn, made = new_id(), list[StoredConversation]()

        async def ask(asked: Store, number: int) -> None:
            new = spawned(parent, turn, onto=Onto(parent.id, one.last))
            made.append(await asked.create(new, [says(f"{number}, first"), says(f"{number}, second")]))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(ask, (store, second)[number % 2], number)
        assert len({record.id for record in made}) == 1
        assert made == [made[0]] * 10
        (child,) = (await second.conversations(parent=parent.id)).items
        noted = texts(await store.events(child.id))[2:]
        assert noted == [f"{noted[0].split(',')[0]}, {word}" for word in ("first", "second")]
        assert (await store.verify()).ok


def spawned(
    parent: StoredConversation,
    turn: str | None = None,
    call: str = "c1",
    *,
    onto: Onto | None = None,
    id: str | None = None,
    **more: object,
) -> NewConversation:
    """A sub-agent of a call, or without a turn one that nobody's call asked for."""
    return NewConversation(
        id=id or new_id(),
        family=parent.family,
        lineage=Lineage("sub_agent", parent.id, None, turn, None if turn is None else call),
        onto=onto,
        settings='{"child":1}',
        cache='{"key":"child"}',
        **more,  # type: ignore[arg-type]
    )


def copies(turn: str, call: str = "c1") -> Sequence[NewEvent]:
    """What a turn has said so far, as copies of its steps, and the answer to its open call."""
    said = [says("look"), calls(call, response=1)]
    return [*(replace(event, origin=f"{turn}/{step}") for step, event in enumerate(said, start=1)), returns(call)]
