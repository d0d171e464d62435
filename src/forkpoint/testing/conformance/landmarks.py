"""What is asked of a store's landmarks: they stand on every path that has their events, and nowhere else."""

from forkpoint.events import Condensation, ManifestChanged, NewEvent, SettingsChanged, SystemMessage, Text, UserMessage
from forkpoint.history.landmarks import LANDMARKS, Landmark, landmarks_in
from forkpoint.ids import new_id
from forkpoint.store.protocol import Store
from forkpoint.testing.conformance.base import Conformance, create, fork_of, run
from forkpoint.testing.samples import exchange

SYSTEM = NewEvent(SystemMessage((Text("Be brief."),)))
SETTINGS = NewEvent(SettingsChanged("{}"))


async def check(store: Store, conversation: str) -> list[Landmark]:
    """The landmarks of a path, if they are what its events say, for all kinds together and for each."""
    events = await store.events(conversation)
    found = await store.landmarks(conversation, LANDMARKS)
    assert found == landmarks_in(events)
    for kind in LANDMARKS:
        assert await store.landmarks(conversation, [kind]) == landmarks_in(events, [kind])
        assert await store.events(conversation, kinds=[kind]) == [event for event in events if event.kind == kind]
    return found


class LandmarkConformance(Conformance):
    async def test_landmarks_say_where_events_of_their_kinds_stand(self, store: Store) -> None:
        id = (await create(store)).id
        assert await check(store, id) == []
        await run(store, id, [SYSTEM, *exchange("one")])
        await store.note(id, new_id(), [NewEvent(Condensation("short", 2)), SETTINGS])
        await run(store, id, [NewEvent(ManifestChanged("hash", "{}")), *exchange("two")])
        found = await check(store, id)
        assert [one.kind for one in found] == ["system_message", "condensation", "settings_changed", "manifest_changed"]
        assert [one.kept_from for one in found] == [None, 2, None, None]

    async def test_a_turn_without_such_events_adds_no_landmark(self, store: Store) -> None:
        id = (await create(store)).id
        await run(store, id, "one")
        assert await check(store, id) == []

    async def test_only_committed_events_are_landmarks(self, store: Store) -> None:
        id = (await create(store)).id
        turn = await store.begin(id, new_id())
        turn = await store.journal(turn, [SYSTEM, NewEvent(UserMessage((Text("one"),)))])  # type: ignore[arg-type]
        assert await check(store, id) == []
        await store.commit(turn, exchange("one")[1:])
        assert [one.position.ordinal for one in await check(store, id)] == [1]

    async def test_a_fork_has_those_of_what_it_shares_and_its_own(self, store: Store) -> None:
        id = (await create(store)).id
        first = await run(store, id, [SYSTEM, *exchange("one")])
        await run(store, id, [SETTINGS, *exchange("two")])
        fork = await store.fork(id, fork_of(), at=first.turn)
        assert [one.kind for one in await check(store, fork.id)] == ["system_message"]
        await run(store, fork.id, [NewEvent(Condensation("short", 3)), *exchange("three")])
        assert [one.kind for one in await check(store, fork.id)] == ["system_message", "condensation"]
        assert [one.kind for one in await check(store, id)] == ["system_message", "settings_changed"]

    async def test_a_fork_in_the_middle_of_a_turn_has_those_before_it(self, store: Store) -> None:
        id = (await create(store)).id
        await run(store, id, [SYSTEM, *exchange("one"), SETTINGS, *exchange("two")])
        place = (await store.events(id))[2].id
        fork = await store.fork(id, fork_of(), at=place)
        assert [one.kind for one in await check(store, fork.id)] == ["system_message"]

    async def test_a_rewind_takes_them_along_to_the_branch_that_it_sets_aside(self, store: Store) -> None:
        id = (await create(store)).id
        first = await run(store, id, "one")
        await run(store, id, [SYSTEM, *exchange("two")])
        _, aside = await store.rewind(id, fork_of(), at=first.turn)
        assert aside is not None
        assert await check(store, id) == []
        assert [one.kind for one in await check(store, aside.id)] == ["system_message"]

    async def test_they_can_be_had_up_to_a_position(self, store: Store) -> None:
        id = (await create(store)).id
        await run(store, id, [SYSTEM, *exchange("one")])
        await run(store, id, [SETTINGS, *exchange("two")])
        events = await store.events(id)
        for event in events:
            upto = landmarks_in(events[: event.id.ordinal])
            assert await store.landmarks(id, LANDMARKS, at=event.id) == upto
            some = await store.events(id, at=event.id, after=1, kinds=sorted(LANDMARKS))
            assert [one.id for one in some] == [one.position for one in upto if one.position.ordinal > 1]

    async def test_they_go_with_their_events(self, store: Store) -> None:
        id = (await create(store)).id
        first = await run(store, id, "one")
        await run(store, id, [SYSTEM, *exchange("two")])
        _, aside = await store.rewind(id, fork_of(), at=first.turn)
        assert aside is not None
        await store.delete(aside.id)
        await store.collect()
        assert await check(store, id) == []
        assert (await store.verify()).ok
