"""A server that is not what it should be: whatever it says, or does not say, is an error that can be understood."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.conversation.support.agents import PATIENCE
from tests.conversation.support.network import answer, canned
from tests.server.support.serving import served

from forkpoint import AsyncConversation
from forkpoint.backend.options import NewTurn
from forkpoint.backend.results import Turn
from forkpoint.engine.views import info_of
from forkpoint.errors import ServerUnreachable
from forkpoint.events import Text, Usage, UserMessage
from forkpoint.ids import new_id
from forkpoint.remote import connection as client
from forkpoint.remote.addresses import KEY
from forkpoint.remote.backend import RemoteBackend
from forkpoint.server.http.keys import ApiKey, Keyring, OneKey
from forkpoint.store.address import open_store
from forkpoint.store.values import NewConversation
from forkpoint.wire.documents import info_document, turn_document

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ASKED = (UserMessage((Text("Hello"),)),)


def frame(event: str, data: Any) -> bytes:
    return f"event: {event}\ndata: {data if isinstance(data, str) else msgspec.json.encode(data).decode()}\n\n".encode()


def ended(conversation: str) -> bytes:
    turn = Turn(new_id(), conversation, "committed", ASKED, (), Usage())
    return frame("turn", turn_document(turn, events=True))


@asynccontextmanager
async def held_open(said: bytes) -> AsyncIterator[str]:
    """Something that says this, and then neither more nor that it is done: as a proxy may."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await done.wait()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        done.set()
        listening.close()


async def test_a_turn_that_was_told_whole_is_returned_though_its_stream_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_LEFT", 0.05)
    id = new_id()
    async with held_open(HEAD + ended(id)) as url:
        backend = RemoteBackend(url)
        with anyio.fail_after(PATIENCE):
            turn = await backend.turns.run(id, None, NewTurn(given=ASKED), lambda _: None)
        await backend.close()
    assert (turn.outcome, turn.conversation) == ("committed", id)


@pytest.mark.parametrize(
    "said", [frame("error", "nonsense"), frame("error", {"error": []}), frame("turn", {"id": 1}), frame("text", "[]")]
)
async def test_frames_that_make_no_sense_are_the_servers_fault_and_no_crash(said: bytes) -> None:
    async with canned(HEAD + said) as (url, _):
        backend = RemoteBackend(url)
        with pytest.raises(ServerUnreachable, match="does not understand"):
            await backend.turns.run(new_id(), None, NewTurn(given=ASKED), lambda _: None)
        await backend.close()


async def a_conversation() -> dict[str, Any]:
    async with await open_store("memory:") as store:
        made = await store.create(NewConversation(id=new_id()))
    document: dict[str, Any] = msgspec.to_builtins(info_document(info_of(made)))
    return document


async def test_an_answer_with_a_place_that_is_none_is_the_servers_fault() -> None:
    found = await a_conversation()
    found["lineage"]["at"] = "nowhere"
    async with canned(answer(found)) as (url, _):
        backend = RemoteBackend(url)
        with pytest.raises(ServerUnreachable, match="not a position"):
            await backend.find("x")
        await backend.close()


@pytest.mark.parametrize("next", ["0", "7", "x"])
async def test_a_page_that_leads_to_itself_or_nowhere_ends_the_reading(next: str) -> None:
    page = {"items": [], "next": next, "head": "1-9"}
    async with canned(*[answer(page)] * 3) as (url, asked):
        backend = RemoteBackend(url)
        with pytest.raises(ServerUnreachable, match="does not understand"):
            await backend.events("x", after=7)
        await backend.close()
    assert len(asked) == 1


async def test_two_keys_in_one_process_are_two_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {name: f"{name}-{'k' * 20}" for name in ("a", "b")}
    ring = Keyring([OneKey(token, ApiKey(name, name, name, 0)) for name, token in keys.items()])
    with served(f"sqlite:///{tmp_path}/server.db", keyring=ring) as server:
        monkeypatch.setenv(KEY, keys["a"])
        async with AsyncConversation("echo", conversation_id="of-a", store=server.url) as first:
            await first.run("Hello")
            monkeypatch.setenv(KEY, keys["b"])
            async with AsyncConversation("echo", conversation_id="of-b", store=server.url) as second:
                await second.run("Hello")
                there = await AsyncConversation.list(store=server.url)
                assert [info.name for info in there.items] == ["of-b"]
            assert (await first.info()).name == "of-a", "what was opened with a key goes on with it"
