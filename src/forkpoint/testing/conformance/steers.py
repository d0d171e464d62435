"""Steers: a message for an open turn is kept until the turn has it, and no commit passes one by."""

import anyio
import pytest

from forkpoint.errors import KeyReused, NoSuchTurn, NotFound, NotWhole, TooLarge, TurnLost, TurnSteered
from forkpoint.events import NewEvent, Text, UserMessage
from forkpoint.history.steers import Steer, read_steers
from forkpoint.ids import new_id
from forkpoint.store.actor import acting
from forkpoint.store.protocol import Store
from forkpoint.store.values import IdempotencyKey, OpenTurn, StoredTurn, TurnError
from forkpoint.testing.clock import ManualClock
from forkpoint.testing.conformance.base import Conformance, begin, create, run, texts
from forkpoint.testing.conformance.evidence.copies import exported, imported
from forkpoint.testing.conformance.evidence.erasures import erase
from forkpoint.testing.conformance.evidence.records import kinds
from forkpoint.testing.samples import answers, calls, exchange, returns, says

A_LONG_TIME = 3600
A_YEAR = 365 * 24 * 3600


async def steer(
    store: Store, conversation: str, text: str, *, turn: str | None = None, key: IdempotencyKey | None = None
) -> tuple[StoredTurn, Steer]:
    return await store.steer(conversation, new_id(), UserMessage((Text(text),)), turn=turn, key=key)


def delivery(one: Steer) -> NewEvent:
    """The step that delivers a message."""
    assert one.message is not None
    return NewEvent(one.message, steer=one.id)


async def told(store: Store, turn: str) -> list[tuple[str | None, bool]]:
    """What was steered to a turn: its words as far as they are with the turn's row, and whether it was delivered."""
    steered = (await store.turn(turn)).steered
    return [(None if one.message is None else one.message.parts[0].text, one.delivered) for one in steered]  # type: ignore[union-attr]


async def in_a_tool(store: Store, conversation: str) -> OpenTurn:
    return await store.journal(await begin(store, conversation), [says("look"), calls("c1", response=1)])


class SteerConformance(Conformance):
    async def test_the_journal_tells_what_was_steered_and_the_message_becomes_history_in_its_place(
        self, store: Store, second: Store
    ) -> None:
        made = await create(store)
        turn = await in_a_tool(store, made.id)
        with acting("ann"):
            found, first = await second.steer(made.id, new_id(), UserMessage((Text("left"),)), by="ann")
        _, then = await steer(second, made.id, "then right", turn=turn.id)
        assert (found.id, found.outcome, first.by, first.delivered) == (turn.id, "running", "ann", False)
        assert (await store.turn(turn.id)).steered == (first, then), "in the order in which they came"
        assert turn.steered is None, "a handle does not know what came after it"
        turn = await store.journal(turn, [returns("c1")])
        assert read_steers(turn.steered) == (first, then)
        turn = await store.journal(turn, [delivery(first), delivery(then)])
        assert await told(store, turn.id) == [(None, True), (None, True)], "each word stands in one place"
        await store.commit(turn, [answers("I turned", response=2)])
        events = await second.events(made.id)
        assert texts(events) == ["look", "tool_call", "seen", "left", "then right", "I turned"]
        assert [event.envelope.steer for event in events] == [None, None, None, first.id, then.id, None]
        assert await kinds(store, made.id) == ["born", "steered", "steered", "committed"]
        record = (await store.records(made.id)).items[1]
        assert (record.by, record.subject) == ("ann", turn.id)
        assert "left" not in str(record.body)

    async def test_a_commit_that_does_not_know_of_a_message_is_refused_and_nothing_has_moved(
        self, store: Store, second: Store
    ) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        _, left = await steer(second, made.id, "wait")
        with pytest.raises(TurnSteered):
            await store.commit(turn, exchange("hi"))
        assert (await store.read(made.id)).head.position is None
        turn = await store.refresh(turn)
        await store.commit(turn, [*exchange("hi"), delivery(left), answers("I waited", response=2)])
        assert texts(await store.events(made.id)) == ["hi", "You said: hi", "wait", "I waited"]
        assert await told(store, turn.id) == [(None, True)], "the commit delivers too"
        assert (await store.verify()).ok

    async def test_who_knows_of_a_message_may_commit_without_it_and_it_stays_with_the_turn(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        await steer(store, made.id, "too late")
        await store.commit(await store.refresh(turn), exchange("hi"))
        assert await told(store, turn.id) == [("too late", False)]
        assert (await store.verify()).ok

    async def test_a_turn_that_is_over_takes_no_message_and_says_what_to_do(self, store: Store) -> None:
        made = await create(store)
        with pytest.raises(NoSuchTurn, match="none is open"):
            await steer(store, made.id, "hello")
        done = await run(store, made.id, "one")
        with pytest.raises(NoSuchTurn, match="committed; send it as the next"):
            await steer(store, made.id, "hello", turn=done.turn)
        failed, cancelled = await begin(store, made.id), None
        await store.fail(failed, TurnError("broken", "the disk was full"))
        with pytest.raises(NoSuchTurn, match="failed; resume it, or send"):
            await steer(store, made.id, "hello", turn=failed.id)
        cancelled = await begin(store, made.id)
        await store.cancel(cancelled)
        with pytest.raises(NoSuchTurn, match="cancelled"):
            await steer(store, made.id, "hello", turn=cancelled.id)
        assert await kinds(store, made.id) == ["born", "committed", "failed", "cancelled"]

    async def test_it_reaches_the_turn_that_was_named_and_no_other(self, store: Store) -> None:
        made, other = await create(store), await create(store)
        theirs = await begin(store, other.id)
        note = await store.note(made.id, new_id(), [says("a note")])
        with pytest.raises(NoSuchTurn, match="another conversation's"):
            await steer(store, made.id, "hello", turn=theirs.id)
        for missing in (new_id(), "no id", note.turn):
            with pytest.raises(NotFound):
                await steer(store, made.id, "hello", turn=missing)
        with pytest.raises(NotFound):
            await steer(store.within("stranger"), other.id, "hello", turn=theirs.id)
        assert await told(store, theirs.id) == []

    async def test_a_turn_that_waits_keeps_the_message_until_it_goes_on(self, store: Store, second: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        await store.wait(turn, [says("look"), calls("c1", response=1)])
        found, left = await steer(second, made.id, "look well")
        assert found.outcome == "awaiting_approval"
        assert await kinds(store, made.id) == ["born", "awaiting_approval", "steered"]
        taken = await second.resume(turn.id)
        assert read_steers(taken.steered) == (left,)
        taken = await second.journal(taken, [returns("c1"), delivery(left)])
        await second.commit(taken, [answers("I looked well", response=2)])
        assert texts(await store.events(made.id))[-2:] == ["look well", "I looked well"]
        assert (await store.verify()).ok

    async def test_a_try_that_ends_keeps_what_it_did_not_deliver_and_resuming_brings_it_back(
        self, store: Store
    ) -> None:
        made = await create(store)
        turn = await in_a_tool(store, made.id)
        await steer(store, made.id, "first")
        turn = await store.journal(turn, [returns("c1")])
        turn = await store.journal(turn, [delivery(read_steers(turn.steered)[0])])
        await steer(store, made.id, "second")
        await store.fail(turn, TurnError("broken", "the disk was full"))
        assert await told(store, turn.id) == [(None, True), ("second", False)]
        assert (await store.verify()).ok
        retry = await store.begin(made.id, new_id(), retry_of=turn.id)
        assert isinstance(retry, OpenTurn)
        assert retry.steered is None, "a retry begins without it"
        await store.cancel(retry)
        taken = await store.resume(turn.id)
        assert read_steers(taken.steered) == (await store.turn(turn.id)).steered
        assert [step.body.parts[0].text for step in await store.steps(turn.id) if step.envelope.steer] == ["first"]  # type: ignore[union-attr]
        await store.cancel(taken)
        assert (await store.verify()).ok

    async def test_whoever_takes_a_turn_over_gets_the_messages_and_the_old_holder_delivers_none(
        self, store: Store, second: Store, clock: ManualClock
    ) -> None:
        if second is store:
            pytest.skip("nobody else can see this store")
        made = await create(store)
        turn = await in_a_tool(store, made.id)
        found, left = await steer(second, made.id, "are you there?")
        clock.pass_by(A_LONG_TIME)
        found, again = await steer(second, made.id, "hello?")
        assert found.outcome == "interrupted", "nobody runs it, and it is open"
        taken = await second.resume(turn.id)
        with pytest.raises(TurnLost):
            await store.journal(turn, [returns("c1"), delivery(left)])
        assert await told(store, turn.id) == [("are you there?", False), ("hello?", False)]
        taken = await second.journal(taken, [returns("c1"), delivery(left), delivery(again)])
        await second.commit(taken, [answers("I am", response=2)])
        assert (await store.verify()).ok

    async def test_one_key_leaves_one_message_however_the_turn_ends(self, store: Store, second: Store) -> None:
        made = await create(store)
        turn = await in_a_tool(store, made.id)
        key = IdempotencyKey("k1", b"asked")
        _, left = await steer(store, made.id, "once", key=key)
        assert (await steer(second, made.id, "once", key=key))[1] == left
        assert (await store.steer(made.id, left.id, UserMessage((Text("once"),))))[1] == left, "nor does its id"
        with pytest.raises(KeyReused):
            await steer(store, made.id, "twice", key=IdempotencyKey("k1", b"other"))
        with pytest.raises(KeyReused):
            await store.begin(made.id, new_id(), key=IdempotencyKey("k1", b"asked"))
        turn = await store.journal(turn, [returns("c1")])
        await store.fail(turn, TurnError("broken", "the disk was full"))
        found, again = await steer(store, made.id, "once", key=key)
        assert (found.id, found.outcome, again.id) == (turn.id, "failed", left.id)
        await store.commit(
            await store.refresh(await store.resume(turn.id)), [delivery(left), answers("yes", response=2)]
        )
        found, again = await steer(store, made.id, "once", key=key)
        assert (found.outcome, again.id, again.delivered) == ("committed", left.id, True)
        await store.delete(made.id)
        other = await create(store)
        await begin(store, other.id)
        assert (await steer(store, other.id, "once", key=key))[1].id != left.id, "what is deleted frees its keys"

    async def test_of_a_commit_and_a_message_at_once_one_is_first_and_both_hear_it(
        self, store: Store, second: Store
    ) -> None:
        for _ in range(10):
            made = await create(store)
            turn = await begin(store, made.id)
            came: list[str] = []

            async def commit(turn: OpenTurn = turn, came: list[str] = came) -> None:
                try:
                    await store.commit(turn, exchange("hi"))
                    came.append("committed")
                except TurnSteered:
                    came.append("refused")

            async def send(id: str = made.id, came: list[str] = came) -> None:
                try:
                    await steer(second, id, "wait")
                    came.append("left")
                except NoSuchTurn:
                    came.append("over")

            async with anyio.create_task_group() as group:
                group.start_soon(commit)
                group.start_soon(send)
            assert sorted(came) in (["committed", "over"], ["left", "refused"])
            assert (await store.verify(made.id)).ok

    async def test_a_message_is_whole_and_no_larger_than_an_event(self, store: Store) -> None:
        made = await create(store)
        turn = await begin(store, made.id)
        with pytest.raises(NotWhole):
            await steer(store, made.id, "  ")
        with pytest.raises(TooLarge):
            await steer(store, made.id, "x" * (32 * 1024 * 1024))
        assert (await store.turn(turn.id)).steered == ()

    async def test_erasing_and_retention_remove_the_words_and_the_key(self, store: Store, clock: ManualClock) -> None:
        made = await create(store)
        await run(store, made.id, "one")
        erased, expired = await begin(store, made.id), None
        await steer(store, made.id, "a secret", key=IdempotencyKey("k1", b"asked"))
        await store.cancel(erased)
        await erase(store, made.id, turn=erased.id)
        assert (await store.turn(erased.id)).steered == ()
        expired = await begin(store, made.id)
        await steer(store, made.id, "another", key=IdempotencyKey("k1", b"asked"))
        await store.cancel(expired)
        clock.pass_by(A_YEAR)
        assert (await store.collect()).tries == 2
        assert (await store.turn(expired.id)).steered == ()
        assert (await store.verify()).ok

    async def test_an_export_has_what_was_steered_and_an_import_brings_it(
        self, store: Store, opener: object, clock: ManualClock
    ) -> None:
        made = await create(store)
        failed = await in_a_tool(store, made.id)
        await steer(store, made.id, "in vain")
        await store.fail(await store.journal(failed, [returns("c1")]), TurnError("broken", "the disk was full"))
        turn = await in_a_tool(store, made.id)
        _, left = await steer(store, made.id, "heard")
        turn = await store.journal(turn, [returns("c1"), delivery(left)])
        await store.commit(turn, [answers("yes", response=2)])
        open = await begin(store, made.id)
        await steer(store, made.id, "on the way")
        data = await exported(store)
        other = store.within("elsewhere")
        await store.cancel(await store.refresh(open))
        await store.delete(made.id)
        await store.collect()
        await imported(other, data)
        assert await told(other, failed.id) == [("in vain", False)]
        assert await told(other, turn.id) == [(None, True)]
        assert await told(other, open.id) == [("on the way", False)]
        assert (await other.verify()).ok, (await other.verify()).flaws
