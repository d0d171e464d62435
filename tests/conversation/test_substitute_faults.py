"""A fork with other results that is struck anywhere is there whole, or not at all, and its source stays as it was."""

import sys
from pathlib import Path

import pytest
from tests.conversation.faults.statements import FILE, kill_at_each
from tests.conversation.faults.substituting import AGENT, FORK, SOURCE, fork, opened, prepare
from tests.conversation.support.agents import kinds, results

from forkpoint import AsyncConversation
from forkpoint.engine.engine import Engine
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import StoredConversation

pytestmark = pytest.mark.anyio

SHARED = ["manifest_changed", "user_message", "model_called", "tool_call", "tool_call"]
NOTE = ["result_substituted", "state_change", "state_change", "tool_result", "tool_result"]


async def judge(file: Path, source: StoredConversation, struck: str) -> bool:
    """Whether the fork is there. Fails if it is there in part; then it is asked for again, and must be there once."""
    engine = Engine(store := await SqliteStore.open(file))
    try:
        there = FORK in [one.name for one in (await store.conversations()).items]
        assert await store.read(source.id) == source, f"the source has changed: {struck}"
        assert (await store.verify()).ok, struck
        if there:
            await check(engine, struck)
        again = await fork(engine)
        assert (await store.find(FORK)).id == again.id, struck
        assert len((await store.conversations()).items) == 2, f"asked for again, it was made twice: {struck}"
        await check(engine, f"{struck}, and asked for again")
        return there
    finally:
        await engine.close()


async def check(engine: Engine, struck: str) -> None:
    """The fork is whole: what it shares, both results, and the state."""
    made = await opened(engine, FORK)
    events = await made.events()
    assert kinds(events[:5]) == SHARED, struck
    assert sorted(kinds(events[5:])) == NOTE, struck
    assert [one.call_id for one in results(events)] == ["call_disk", "call_net"], struck
    assert await made.agent_state() == {"disk": "seen", "by": "ann"}, struck
    assert (await made.info()).status == "idle", struck


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, and no fork")
async def test_a_process_that_dies_at_any_write_of_a_fork_with_other_results_leaves_it_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    await prepare(tmp_path)
    async with await SqliteStore.open(tmp_path / FILE) as store:
        source = await store.find(SOURCE)
    killed = await kill_at_each(fork, tmp_path)
    found = {name: await judge(tmp_path / name / FILE, source, name) for name in killed}
    assert set(found.values()) == {True, False}
    for is_there in (True, False):  # and then it goes on as any other
        goes_on = next(name for name, there in found.items() if there == is_there)
        async with await SqliteStore.open(tmp_path / goes_on / FILE) as store:
            made = await AsyncConversation.open(FORK, agent=AGENT, store=store)
            assert (await made.go_on()).text == "the disk is full and the net is fine"
            assert (await store.verify()).ok
            assert (await store.usage(source.family)).calls == 3
            assert await store.read(source.id) == source
