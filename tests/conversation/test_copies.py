"""Exports and imports as callers see them, in both homes: a store of this process, and a server."""

import io
import json
import os
import stat
from pathlib import Path

import pytest
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, AsyncConversations, Conversation, Conversations, Secret
from forkpoint.agent.mcp import McpServer
from forkpoint.backend.actor import acting_as
from forkpoint.errors import AlreadyExists, BadArgument, BadExport, NotFound, SecretInside
from forkpoint.history.exports.check import check

ECHO = Agent("scripted/echo")
KEY = "ghp_4f9Kq2Lm7Yx0Wz1Ab3"

pytestmark = pytest.mark.anyio


async def test_a_conversation_moves_to_another_home_and_goes_on(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    async with AsyncConversation(home.agent(ECHO), conversation_id="talk", store=home.store) as talk:
        await talk.run("Hello")
        report = await talk.export(file)
    data = file.read_bytes()
    assert report.bytes == len(data)
    assert report.digest == json.loads(data.splitlines()[-1])["sha256"]
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert not check(data.splitlines(keepends=True)).flaws
    async with AsyncConversations(f"sqlite:///{tmp_path / 'other.db'}") as others:
        done = await others.import_(file)
        assert (done.new, done.events > 0) == ((talk.id,), True)
        assert not (await others.import_(file)).changed
        async with await others.open("talk", agent=ECHO) as moved:
            assert (await moved.run("And on?")).text == "You said: And on?"
            fork = await moved.fork(title="From there")
            async with fork:
                await fork.run("In a fork")
                await fork.export(file, family=True)
        assert (await others.verify()).ok
    async with AsyncConversations(home.store) as conversations:
        back = await conversations.import_(file)
        assert (back.grown, back.new) == ((talk.id,), (fork.id,))
        assert (await conversations.verify()).ok
        async with await conversations.open(fork.id, bind=False) as returned:
            assert [turn.text for turn in (await returned.turns()).items][-1] == "You said: In a fork"


def test_the_same_without_await(home: Home, tmp_path: Path) -> None:
    seen: list[int] = []
    with Conversations(home.store) as conversations:
        with conversations.create(home.agent(ECHO), conversation_id="talk", tags={"team": "build"}) as talk:
            talk.run("Hello")
            whole, tagged, none = io.BytesIO(), io.BytesIO(), io.BytesIO()
            talk.export(whole, progress=seen.append)
        conversations.export(tagged, tags={"team": "build"})
        conversations.export(none, tags={"team": "other"})
    assert seen[-1] == len(whole.getvalue())
    assert [b'"name":"talk"' in file.getvalue() for file in (whole, tagged, none)] == [True, True, False]
    with Conversations(f"sqlite:///{tmp_path / 'other.db'}") as others:
        tagged.seek(0)
        assert others.import_(tagged).new == (talk.id,)
        none.seek(0)
        assert not others.import_(none).changed


async def test_what_cannot_be_imported_says_why(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    async with AsyncConversation(ECHO, conversation_id="talk", store=f"sqlite:///{tmp_path / 'other.db'}") as talk:
        await talk.run("Hello")
        await talk.export(file)
    async with AsyncConversations(home.store) as conversations:
        async with await conversations.create(home.agent(ECHO), conversation_id="talk"):
            pass
        with pytest.raises(AlreadyExists):
            await conversations.import_(file)
        assert (await conversations.import_(file, rename=True)).renamed == {talk.id: "talk-2"}
        with pytest.raises(BadExport) as bad:
            await conversations.import_(io.BytesIO(file.read_bytes().replace(b"Hello", b"Hallo")))
        assert bad.value.line > 1


async def test_a_transcript_is_for_people(home: Home) -> None:
    file = io.BytesIO()
    async with AsyncConversation(home.agent(ECHO), title="The `disk`", store=home.store) as talk:
        with pytest.raises(NotFound):
            await talk.export(file)
        await talk.run("Why?\n\n```\nno end of this block")
        fork = await talk.fork(title="Other")
        await fork.close()
        await talk.export(file, format="md")
        with pytest.raises(BadArgument, match="forkpoint, md"):
            await talk.export(file, format="docx")
    text = file.getvalue().decode()
    assert text.startswith("# The `disk`\n")
    assert "**User**\n\nWhy?\n\n```\nno end of this block\n```\n" in text, "a code block that was left open is closed"
    assert f"Branches begin here: `{fork.name}`" in text


async def test_who_exported_a_conversation_is_on_record(tmp_path: Path) -> None:
    file = io.BytesIO()
    async with AsyncConversation(ECHO, store=f"sqlite:///{tmp_path / 'one.db'}") as talk:
        await talk.run("Hello")
        with acting_as("ann"):
            await talk.export(file)
    bodies = [json.loads(line)["body"] for line in file.getvalue().splitlines() if line.startswith(b'{"line":"record"')]
    last = json.loads(bodies[-1])
    assert (last["kind"], last["by"], last["exported"]["scope"]) == ("exported", "ann", "conversation")
    assert json.loads(file.getvalue().splitlines()[0])["by"] == "ann"


async def test_a_store_that_can_only_be_read_is_exported_without_a_record(tmp_path: Path) -> None:
    store, file, text = f"sqlite:///{tmp_path / 'one.db'}", io.BytesIO(), io.BytesIO()
    async with AsyncConversation(ECHO, conversation_id="talk", store=store) as talk:
        await talk.run("Hello")
    async with AsyncConversations(f"{store}?mode=ro") as conversations:
        reports = [await conversations.export(file), await conversations.export(text, format="md")]
    assert [report.recorded for report in reports] == [False, False]
    assert b'"kind":"exported"' not in file.getvalue()
    assert not check(file.getvalue().splitlines(keepends=True)).flaws
    assert b"You said: Hello" in text.getvalue()


WITH_A_LITERAL = {
    "env": McpServer("builds", command=["builds"], env={"BUILDS_TOKEN": KEY}),
    "header": McpServer("builds", url="https://builds.example/mcp", headers={"Authorization": f"Bearer {KEY}"}),
    "any variable": McpServer("builds", command=["builds"], env={"MODE": KEY}),
}


@pytest.mark.parametrize("where", WITH_A_LITERAL)
async def test_no_export_has_a_key_that_somebody_wrote_into_an_agent(where: str, tmp_path: Path) -> None:
    store, file = f"sqlite:///{tmp_path / 'one.db'}", tmp_path / "talk.jsonl"
    agent = Agent("scripted/echo", mcp=[WITH_A_LITERAL[where]])
    async with AsyncConversations(store) as conversations:
        async with await conversations.create(agent, conversation_id="talk") as talk:
            with pytest.raises(SecretInside):
                await talk.export(file)
        with pytest.raises(SecretInside):
            await conversations.export(file)
    left = [name for name in os.listdir(tmp_path) if "talk" in name]
    assert not left, "nothing of it is left beside the file"


async def test_an_export_has_references_and_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDS_TOKEN", KEY)
    file = io.BytesIO()
    server = McpServer("builds", command=["builds"], env={"BUILDS_TOKEN": "${BUILDS_TOKEN}"})
    agent = Agent("scripted/echo", mcp=[server], secrets={"BUILDS_TOKEN": Secret(env="BUILDS_TOKEN")})
    store = f"sqlite:///{tmp_path / 'one.db'}"
    async with AsyncConversations(store) as them, await them.create(agent, conversation_id="talk") as talk:
        await talk.export(file)
    assert b"${BUILDS_TOKEN}" in file.getvalue()
    assert KEY.encode() not in file.getvalue()


def test_a_file_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    with Conversation(ECHO, store=f"sqlite:///{tmp_path / 'one.db'}") as talk:
        talk.run("Hello")
        with pytest.raises(OSError, match="folder"):
            talk.export(tmp_path / "no such folder" / "x")
