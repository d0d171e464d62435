"""Chat completions as tests ask for them: few words for each request, and streams that are read piece by piece."""

import fcntl
import http.client
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.server.support import serving
from tests.server.support.turning import PATIENCE, Api
from tests.store.conftest import WatchedConnection

from forkpoint.agent import Agent
from forkpoint.llm import LLM, Retries
from forkpoint.server.agents.catalog import Catalog
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import Database, connect
from forkpoint.testing import ModelServer

PATH = "/v1/chat/completions"
NAME = "X-Conversation-Id"

Message: TypeAlias = Mapping[str, Any]
Messages: TypeAlias = str | Sequence[Message]
"""A client's list; a text is a list of one message of the user."""


def post(
    client: httpx2.Client,
    messages: Messages = "Hello",
    *,
    conversation: str | None = None,
    model: str = "helper",
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> httpx2.Response:
    """Asks, and gives the whole answer; of a stream too, which `spoken` reads."""
    return client.post(PATH, json=body(messages, model=model, **fields), headers=named(conversation, headers))


@contextmanager
def streamed(
    client: httpx2.Client,
    messages: Messages = "Hello",
    *,
    conversation: str | None = None,
    model: str = "helper",
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> Iterator["Stream"]:
    """Asks for a stream, and gives it once it begins. Leaving the block closes the connection."""
    asked = body(messages, model=model, stream=True, **fields)
    with client.stream("POST", PATH, json=asked, headers=named(conversation, headers)) as response:
        stream = Stream(response)  # kept here: without its reader the connection is closed
        yield stream


def body(messages: Messages, *, model: str = "helper", **fields: Any) -> dict[str, Any]:
    """What is sent."""
    listed = [user(messages)] if isinstance(messages, str) else list(messages)
    return {"model": model, "messages": listed, **fields}


def named(conversation: str | None, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers of a request for a conversation."""
    return ({} if conversation is None else {NAME: conversation}) | dict(headers or {})


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


class Stream:
    """A stream as it comes: each chunk parsed, ``[DONE]`` and comments as they are."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[Any]:
        for line in self._lines:
            if line.startswith("data: "):
                said = line.removeprefix("data: ")
                yield said if said == "[DONE]" else json.loads(said)
            elif line.startswith(":"):
                yield line

    def until_text(self, pieces: int = 1) -> list[str]:
        """The first pieces of text, so many."""
        found: list[str] = []
        while len(found) < pieces:
            chunk = next(iter(self))
            found += [text] if isinstance(chunk, dict) and (text := text_of(chunk)) else []
        return found

    def rest(self) -> "Spoken":
        """All that is still to come."""
        return Spoken(list(self))


class Spoken:
    """A stream that has ended."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = list(items)
        self.chunks: list[dict[str, Any]] = [one for one in items if isinstance(one, dict) and "error" not in one]
        self.comments: list[str] = [one for one in items if isinstance(one, str) and one.startswith(":")]
        self.errors: list[dict[str, Any]] = [one["error"] for one in items if isinstance(one, dict) and "error" in one]
        self.done: bool = "[DONE]" in items

    @property
    def text(self) -> str:
        return "".join(map(text_of, self.chunks))

    @property
    def finishes(self) -> list[str]:
        """The finish reasons that were said; one, in a stream that ended well."""
        said = [choice["finish_reason"] for chunk in self.chunks for choice in chunk["choices"]]
        return [reason for reason in said if reason is not None]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The client's tool calls, put together."""
        found: dict[int, dict[str, Any]] = {}
        for chunk in self.chunks:
            for choice in chunk["choices"]:
                for call in choice["delta"].get("tool_calls") or ():
                    whole = found.setdefault(call["index"], {"id": call.get("id"), "name": "", "arguments": ""})
                    whole["name"] += call["function"].get("name") or ""
                    whole["arguments"] += call["function"].get("arguments") or ""
        return [found[index] for index in sorted(found)]


def text_of(chunk: Mapping[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def spoken(response: httpx2.Response) -> Spoken:
    """The answer of a stream that was read whole."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    return Stream(response).rest()


def said(response: httpx2.Response) -> str:
    """The text of an answer that is well, streamed or not."""
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        return str(response.json()["choices"][0]["message"]["content"])
    whole = spoken(response)
    assert (whole.errors, whole.done, len(whole.finishes)) == ([], True, 1), response.text
    return whole.text


def problem(response: httpx2.Response) -> tuple[int, str]:
    """The status and the code of a request that failed; 200 for a stream that had begun."""
    if response.headers["content-type"].startswith("text/event-stream"):
        whole = spoken(response)
        assert (len(whole.errors), whole.finishes, whole.done) == (1, [], False), response.text
        assert whole.items[-1] == {"error": whole.errors[0]}, "it is the last thing that is said"
        return response.status_code, str(whole.errors[0]["code"])
    return response.status_code, str(response.json()["error"]["code"])


class Leaver:
    """A client that sends a request, and goes when it is told to, whatever has come by then."""

    def __init__(self, api: Api, body: Mapping[str, Any], headers: Mapping[str, str], *, path: str = PATH) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(str(api.http.base_url)).netloc, timeout=PATIENCE)
        sent = json.dumps(body, separators=(",", ":"), ensure_ascii=False)  # byte for byte as `post` sends it
        self._connection.request("POST", path, sent, {"Content-Type": "application/json", **headers})

    def leave(self) -> None:
        self._connection.close()


class Disk:
    """The disk of the servers that are started from now on: a commit can be made to fail there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: Literal["lost", "landed", "unknown"] | None = None  # how the next COMMIT fails
        self._is_broken = False
        monkeypatch.setattr(serving, "open_store", self._open)

    def mend(self) -> None:
        """It works again, after a commit of which nobody knows what became."""
        self._is_broken = False

    async def _open(self, url: str) -> SqliteStore:
        assert url.startswith("sqlite:///"), "only a file has a disk"
        return await SqliteStore.open(url.removeprefix("sqlite:///"), connect=self._connect)

    def _connect(self, path: str) -> Database:
        db = connect(path)
        db.__class__ = WatchedConnection
        assert isinstance(db, WatchedConnection)
        db.watch = self._watch
        return db

    def _watch(self, db: Database, sql: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if sql.startswith("COMMIT") and not self._is_broken:
            how, self.fails = self.fails, None
            if how == "landed":
                execute()
            if how is not None:
                self._is_broken = how == "unknown"
                raise _broken()
        if self._is_broken:
            raise _broken()
        return execute()


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Within the block what is written to a store may begin, and cannot end."""
    with closing(sqlite3.connect(file, timeout=PATIENCE)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def writing(file: Path) -> None:
    """Waits until a server has begun to write there, and cannot go on."""
    looks = 0

    def stays_taken() -> bool:
        nonlocal looks
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            looks += 1  # once may be somebody who tries it, and goes again
        else:
            fcntl.flock(lock, fcntl.LOCK_UN)
            looks = 0
        return looks >= 10

    with open(f"{file}-write", "r+b") as lock:
        until(stays_taken)


def _broken() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return error


def until(is_so: Callable[[], bool]) -> None:
    """Waits until something is so. Nothing can be heard of it, so it is looked at again and again."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


# What the server and the model know.


def history(api: Api, name: str) -> list[str]:
    """What stands in a conversation's committed history, in words; nothing if there is no such conversation."""
    if api.http.get(f"/api/conversations/{name}").status_code == 404:
        return []
    return api.said(name)


def tries(api: Api, name: str) -> list[str]:
    """How each of its turns ended, also those that failed."""
    return api.outcomes(name)


def asked(models: ModelServer) -> list[tuple[bytes, ...]]:
    """What the model was sent, request by request, block for block."""
    return [one.blocks for one in models.requests]


def agents_at(
    models: ModelServer | str, *, attempts: int = 1, llm: Mapping[str, Any] | None = None, **more: Any
) -> Catalog:
    """One agent, ``helper``, whose model is this server. It is asked once: one fault is one failed turn."""
    url = models if isinstance(models, str) else models.url
    settings: dict[str, Any] = {"retries": Retries(attempts=attempts, wait=0.001), **(llm or {})}
    return Catalog({"helper": Agent(LLM("openai/test", base_url=url, **settings), **more)})
