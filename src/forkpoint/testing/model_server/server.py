"""The server itself: a thread with a loop of its own, which answers each request as a script says."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import h11

from forkpoint.events import Usage
from forkpoint.llm.scripts import PromptCache, Reply, Script
from forkpoint.testing.model_server.chat import SpokenChat
from forkpoint.testing.model_server.connection import HttpRequest, Peer
from forkpoint.testing.model_server.delivery import CutHere, answer, send_error
from forkpoint.testing.model_server.messages import Messages
from forkpoint.testing.model_server.recording import PATIENCE, Recorded, Recording
from forkpoint.testing.model_server.responses import Responses
from forkpoint.testing.model_server.wire import ModelWire, Refusal

HOST = "127.0.0.1"  # nobody else is to reach a server that asks for no key

_WIRES: dict[str, ModelWire] = {wire.path: wire for wire in (SpokenChat(), Responses(), Messages())}
_MOST_MARKS = 4  # that Anthropic takes in a request


class ModelServer:
    """A server on loopback that answers as its script says, and records every request.

    ``with ModelServer(Script([Reply("Hello")])) as server:`` serves at ``server.url`` until the block ends. It may be
    used from any thread and any loop. ``script`` can be replaced at any time. ``cache`` counts cached tokens; without
    one the script's cache does, if it has any. ``keep=False`` answers without recording, for long runs. A script's
    function runs in the server's thread, so it must not wait for anything; `holding` and a reply's delay are for that.
    """

    def __init__(self, script: Script, *, cache: PromptCache | None = None, port: int = 0, keep: bool = True) -> None:
        self.script = script
        self.cache = cache
        self.connections = 0  # how many there were, to see whether a client uses one twice
        self._asked_port = port
        self._port: int | None = None
        self._recording = Recording(keep=keep)
        self._gate: asyncio.Event | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._bug: Exception | None = None

    @property
    def root(self) -> str:
        """The base URL for Anthropic's clients, which add the version themselves."""
        if self._port is None:
            raise RuntimeError("the server is not started: use it in a with statement")
        return f"http://{HOST}:{self._port}"

    @property
    def url(self) -> str:
        """The base URL for OpenAI's clients, and all others that expect the version in it."""
        return f"{self.root}/v1"

    @property
    def requests(self) -> list[Recorded]:
        """Every request so far, in order."""
        return self._recording.requests

    @property
    def last(self) -> Recorded:
        """The newest request."""
        return self.requests[-1]

    def wait_for(self, count: int, *, timeout: float = PATIENCE) -> list[Recorded]:
        """Every request, once there are so many. Raises `TimeoutError`."""
        return self._recording.wait_for(count, timeout)

    async def heard(self, count: int) -> list[Recorded]:
        """`wait_for` for a coroutine."""
        return await self._recording.heard(count)

    def wait_idle(self, *, timeout: float = PATIENCE) -> None:
        """Returns when each request is answered or its client has left. Raises `TimeoutError`."""
        self._recording.wait_idle(timeout)

    async def idle(self) -> None:
        """`wait_idle` for a coroutine."""
        await self._recording.idle()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Within the block requests are recorded, but none is answered before it ends."""
        gate = self._gate = asyncio.Event()
        try:
            yield
        finally:
            self._gate = None
            self._loop.call_soon_threadsafe(gate.set)

    def start(self) -> Self:
        """Listens. Raises `OSError` if the port is taken."""
        listener = socket.create_server((HOST, self._asked_port), backlog=1024)
        self._port = listener.getsockname()[1]
        self._loop, self._stopping = asyncio.SelectorEventLoop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="model-server", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends every connection at once, whatever is going on there. Raises what went wrong in the server itself."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self._thread = self._port = None
        if self._bug is not None:
            raise self._bug

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # In the server's thread.

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main(listener))

    async def _main(self, listener: socket.socket) -> None:
        # No asyncio server: stopped at a bad moment, it forgets connections that it has accepted but not yet set up.
        with listener:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)
            await self._stopping.wait()
            self._loop.remove_reader(listener)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # it has left again
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each piece leaves at once
        self.connections += 1
        task = self._loop.create_task(self._serve(client))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        task.add_done_callback(lambda _: client.close())  # nobody else does, if the task is cancelled before it begins

    async def _serve(self, client: socket.socket) -> None:
        connection = Peer(*await asyncio.open_connection(sock=client))
        try:
            while (request := await connection.request()) is not None:
                await self._attend(connection, request)
            await connection.close()
        except CutHere:
            await connection.close()
        except (OSError, h11.RemoteProtocolError):
            pass  # the client has left, or speaks something else
        except Exception as bug:
            self._bug = self._bug or bug
        finally:
            await connection.abort()

    async def _attend(self, connection: Peer, request: HttpRequest) -> None:
        """Answers a request for as long as its client stays."""
        path = request.target.partition("?")[0]
        wire = _WIRES.get(path) if request.method == "POST" else None
        name = wire.name if wire else None
        recorded = self._recording.add(request.method, path, request.headers, request.body, name)
        response = self._respond(connection, recorded, wire) if wire else self._respond_plainly(connection, recorded)
        answering, leaving = asyncio.create_task(response), asyncio.create_task(connection.left())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            self._recording.ended()

    async def _respond(self, connection: Peer, request: Recorded, wire: ModelWire) -> None:
        if problem := _unfit(request, wire):
            await send_error(connection, wire, request, problem)
            return
        try:
            reply = self._reply(request, wire)
        except Exception as error:  # a script is a test's own code; its client is told, and is not to try again
            await send_error(
                connection, wire, request, wire.refused(f"{type(error).__name__}: {error}", code="bad_script")
            )
            return
        if (gate := self._gate) is not None:
            await gate.wait()
        await answer(connection, wire, request, reply, lambda: self._count(request, wire))

    async def _respond_plainly(self, connection: Peer, request: Recorded) -> None:
        if request.path == "/v1/models" and request.method == "GET":
            await connection.send_json(200, _models(anthropic=request.header("anthropic-version") is not None))
            return
        known = request.path == "/v1/models" or request.path in _WIRES
        error = {"message": f"Not here: {request.method} {request.path}", "type": "invalid_request_error"}
        await connection.send_json(405 if known else 404, {"error": {**error, "param": None, "code": "unknown_url"}})

    def _reply(self, request: Recorded, wire: ModelWire) -> Reply:
        _, reply = self.script.reply(request.model, request.json, wire=wire.name)
        return reply

    def _count(self, request: Recorded, wire: ModelWire) -> Usage:
        cache: PromptCache | None = self.cache if self.cache is not None else self.script.cache
        if cache is None:
            return Usage(calls=1, input=request.prompt.tokens)
        return cache.of_body(request.json, wire=wire.name, key=request.key)


def _unfit(request: Recorded, wire: ModelWire) -> Refusal | None:
    """Why a provider would not even try, if that is so."""
    if not isinstance(request.json, dict):
        return wire.refused("We could not parse the JSON body of your request.")
    for name in wire.required:
        if request.json.get(name) is None:
            return wire.refused(f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name)
    if wire.name == "messages" and len(request.marks) > _MOST_MARKS:
        words = f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided. Found {len(request.marks)}."
        return wire.refused(words)
    return None


def _models(*, anthropic: bool) -> dict[str, Any]:
    if anthropic:
        model = {"type": "model", "id": "scripted", "display_name": "Scripted", "created_at": "2025-01-01T00:00:00Z"}
        return {
            "data": [{**model, "lifecycle": "active"}],
            "has_more": False,
            "first_id": "scripted",
            "last_id": "scripted",
        }
    model = {"id": "scripted", "object": "model", "owned_by": "forkpoint"}
    return {"object": "list", "data": [{**model, "created": 1735689600}]}
