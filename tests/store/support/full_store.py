"""A store with something of every kind that Forkpoint writes, for tests that change or move it."""

from pathlib import Path

from msgspec.structs import replace

from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.actor import acting
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import Lineage, NewConversation, OpenTurn, StoredConversation, TurnError
from forkpoint.testing.conformance.base import create, fork_of, run
from forkpoint.testing.samples import answers, calls, exchange, remembers, returns, says

SETTINGS = '{"approval":"risky"}'
SPENT = Usage(calls=1, input=10)
FAILED = TurnError("tool_failed", "the disk said no")


async def fill(path: Path) -> None:
    """Makes the store. Its conversations are found by their names."""
    async with await SqliteStore.open(path) as store:
        with acting("alice"):
            root = await _root(store)
            await _tries(store, root.id)
            await _branches(store, root)
            await _deleted(store)
            await _left_behind(store)
            await _open_turns(store)


async def begun(store: SqliteStore, conversation: str, text: str = "please", **more: str) -> OpenTurn:
    turn = await store.begin(conversation, new_id(), input=f'{{"text":"{text}"}}', by="bob", **more)  # type: ignore[arg-type]
    assert isinstance(turn, OpenTurn)
    return turn


async def _root(store: SqliteStore) -> StoredConversation:
    new = NewConversation(id=new_id(), name="root", settings=SETTINGS, cache='{"key":"k"}', title="Root")
    root = await store.create(new)
    await run(store, root.id, [*exchange("one"), remembers("kept", "true")], SPENT)
    looked = [says("look"), calls("c1", response=1), returns("c1"), answers("seen", response=2)]
    await store.commit(await begun(store, root.id, "look"), looked, usage=SPENT)
    await store.note(root.id, new_id(), [remembers("noted", "1")], by="bob")
    await store.describe(root.id, title="A title", tags=(("team", "blue"),))
    await store.change_approvals(root.id, '[{"tool":"look"}]', if_approvals="[]")
    await store.charge(root.id, new_id(), Usage(calls=1, output=3))
    await store.charge(None, new_id(), Usage(calls=1, output=4))
    return root


async def _tries(store: SqliteStore, root: str) -> None:
    turn = await begun(store, root, "delete it")
    turn = await store.journal(turn, [says("delete"), calls("d1", response=1)], usage=Usage(calls=1))
    turn = await store.journal(turn, [returns("d1", "deleted")])
    await store.fail(turn, FAILED, usage=SPENT)
    await store.cancel(await begun(store, root, "never mind"))
    again = await begun(store, root, "delete it", retry_of=turn.id)
    await store.commit(again, exchange("again"), usage=SPENT, settings='{"approval":"always"}', cache='{"key":"k2"}')
    lone = await create(store, "lone")
    turn = await begun(store, lone.id)
    await store.fail(turn, FAILED)
    await store.commit(await store.resume(turn.id), exchange("hi"), usage=SPENT)


async def _branches(store: SqliteStore, root: StoredConversation) -> None:
    first = (await store.turns(root.id)).items[0]
    fork = await store.fork(root.id, fork_of("fork"))
    await run(store, fork.id, "in the fork")
    await store.fork(root.id, fork_of("early"), at=first.id)
    await store.fork(fork.id, fork_of("unused"))
    rewound = await store.fork(root.id, fork_of("rewound"))
    await run(store, rewound.id, "leave this")
    await store.rewind(rewound.id, fork_of("aside"), at=first.id)
    await run(store, rewound.id, "instead")
    keeper = await store.fork(root.id, fork_of("keeper"), at=first.id)
    await run(store, keeper.id, "leave this too")
    await store.keep(keeper.id, fork.id, fork_of("kept-aside"), settings='{"approval":"risky"}', cache='{"key":"k3"}')
    lineage = Lineage("sub_agent", root.id, None, first.id, "c1")
    copied = replace(says("one"), origin=f"{first.id}/0")
    new = NewConversation(id=new_id(), name="child", family=root.id, lineage=lineage)
    child = await store.create(new, [copied])
    await run(store, child.id, "a task")
    await store.rename(child.id, "helper")


async def _deleted(store: SqliteStore) -> None:
    """A conversation that is gone, with a fork that lives on; and one whose id is used again."""
    gone = await create(store, "gone")
    empty_heir = await store.fork(gone.id, fork_of("empty-heir"))
    await store.commit(await begun(store, gone.id), exchange("kept"), usage=SPENT)
    heir = await store.fork(gone.id, fork_of("heir"))
    await store.fail(await begun(store, gone.id), FAILED, usage=SPENT)
    await store.charge(gone.id, new_id(), Usage(calls=1, output=5))
    await run(store, gone.id, "only here")
    await store.delete(gone.id)
    await store.collect()
    await run(store, heir.id, "on")
    await run(store, empty_heir.id, "from nothing")
    for _ in range(2):
        again = await store.create(NewConversation(id=gone.id, name="again"))
        await run(store, again.id, "another life")
        await store.delete(again.id)
    await run(store, (await store.create(NewConversation(id=gone.id, name="again"))).id, "and another")


async def _left_behind(store: SqliteStore) -> None:
    """A conversation that has left a turn behind which is collected."""
    left = await create(store, "left")
    first = await run(store, left.id, "one")
    await store.commit(await begun(store, left.id), exchange("two"), usage=SPENT, settings='{"b":2}')
    aside = fork_of()
    await store.rewind(left.id, aside, at=first.turn)
    await store.delete(aside.id)
    assert (await store.collect()).turns


async def _open_turns(store: SqliteStore) -> None:
    waits = await create(store, "waits")
    await run(store, waits.id, "before")
    await store.wait(await begun(store, waits.id), [says("may I?"), calls("w1", response=1)], usage=SPENT)
    cut = await create(store, "cut")
    await run(store, cut.id, "before")
    await store.journal(await begun(store, cut.id), [says("half"), calls("x1", response=1)], usage=SPENT)
