"""The holder of a turn is killed at each of its writes: no message that was accepted is lost, and none comes twice."""

import shutil
import sys
from pathlib import Path

import pytest
from tests.conversation.support.steered_kills import MESSAGES, Children, agent, prepared

from forkpoint import AsyncConversation
from forkpoint.engine import Engine
from forkpoint.events import Text, UserMessage
from forkpoint.store.sqlite import SqliteStore

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="it forks")]


async def test_killed_at_any_write_it_loses_no_message_that_was_accepted(tmp_path: Path) -> None:
    await prepared(tmp_path / "new.db")
    found: list[str] = []
    with Children() as children:
        for dies_at in range(1, 200):
            folder = tmp_path / str(dies_at)
            folder.mkdir()
            shutil.copy(tmp_path / "new.db", folder / "a.db")
            log = folder / "accepted"
            killed = children.run(folder / "a.db", log, dies_at)
            accepted = log.read_text().split() if log.exists() else []
            found.append(await outcome(folder / "a.db", accepted))
            if not killed:
                break
    assert found[-1] == "committed", "the last one was left alone"
    assert {"idle", "resumed with 0", "resumed with 1", "resumed with 3", "committed"} <= set(found), found


async def outcome(file: Path, accepted: list[str]) -> str:
    """How a conversation stands whose process was killed, once somebody has gone on with it."""
    engine = Engine(await SqliteStore.open(file))
    try:
        info, settings = await engine.find("steered")
        conversation = AsyncConversation.over(engine, info, settings, agent())
        assert (await conversation.verify()).ok, (await conversation.verify()).flaws
        told: str = info.status
        if info.status == "interrupted":
            open = await conversation.open_turn()
            assert open is not None
            words = [one.message.parts[0] for one in open.steered if one.message is not None]
            there = [part.text for part in words if isinstance(part, Text)]
            assert there[: len(accepted)] == accepted
            assert len(there) <= len(accepted) + 1, "what the process died over may be there, and nothing else"
            turn = await conversation.resume()
            told = f"resumed with {len(there)}"
        else:
            turns = (await conversation.turns()).items
            if not turns:
                assert not accepted
                return told
            (turn,) = turns
            there, told = MESSAGES, turn.outcome
        said = [event.body for event in turn.events if isinstance(event.body, UserMessage)]
        assert [part.text for one in said for part in one.parts if isinstance(part, Text)] == ["Look.", *there]
        assert turn.text == " ".join(["Look.", *there]), "the model was shown each once, in order"
        assert all(one.delivered for one in turn.steered)
        assert (await conversation.verify()).ok
        return told
    finally:
        await engine.close()
