"""How an answer is sent, and how it goes wrong on the way.

A fault comes after so many pieces: of text, of thoughts, of arguments. Before the first piece an error is a status;
later it is the event that the wire has for it. An answer that is not streamed has no pieces: an error is always a
status, and a connection that breaks breaks in the middle of the body. `empty` and `unfinished_call` say themselves how
far an answer goes.
"""

import asyncio
from collections.abc import Callable

import msgspec

from forkpoint.events import Usage
from forkpoint.llm.scripts import Fault, Reply
from forkpoint.testing.model_server.connection import Peer
from forkpoint.testing.model_server.recording import Recorded
from forkpoint.testing.model_server.speech import Speech, speech_of
from forkpoint.testing.model_server.wire import ModelWire, Refusal

ERRORS = frozenset({"authentication", "quota", "rate_limit", "context_too_long", "bad_request", "overloaded", "status"})
_BREAKS = ERRORS | {"hang", "cut", "malformed", "unfinished"}


class CutHere(Exception):
    """The connection is to be cut here."""


async def answer(
    connection: Peer, wire: ModelWire, request: Recorded, reply: Reply, count: Callable[[], Usage]
) -> None:
    """Sends the reply to a request. ``count`` says what the prompt used, if it comes to that.

    Raises `CutHere` if the connection is to be cut, and never returns if nothing more is to come.
    """
    await _sleep(reply.delay)
    streamed = request.json.get("stream") is True
    if problem := _refusal(reply.fault, wire, request, streamed):
        await send_error(connection, wire, request, problem, reply.fault)
        return
    speech = speech_of(reply, request, count())
    fault = reply.fault if reply.fault is not None and reply.fault.kind in _BREAKS else None
    if fault is not None and fault.after == 0:
        await _stay_away(fault)
    if streamed:
        await _stream(connection, wire, speech, fault, reply.pace)
    else:
        await _sleep(reply.pace * max(speech.pieces - 1, 0))  # a model takes as long when nobody watches
        await _send_whole(connection, wire, speech, fault)


async def send_error(
    connection: Peer, wire: ModelWire, request: Recorded, problem: Refusal, fault: Fault | None = None
) -> None:
    """An error status, with the provider's wish when to come again."""
    headers = _headers(request)
    if fault is not None and fault.retry_after is not None:
        headers.append(("retry-after", f"{fault.retry_after:g}"))
        if fault.retry_after % 1:
            headers.append(("retry-after-ms", f"{fault.retry_after * 1000:g}"))
    await connection.send_json(problem.status, wire.error(problem, _request_id(request)), headers)


def _refusal(fault: Fault | None, wire: ModelWire, request: Recorded, streamed: bool) -> Refusal | None:
    """Why there is no answer at all, if that is so."""
    if fault is None:
        return None
    match fault.kind:
        case "refuses_cache_key":
            refused = "prompt_cache_key" in request.json
        case "refused":
            refused = wire.refuses_prompts and fault.after == 0
        case kind:
            refused = kind in ERRORS and (fault.after == 0 or not streamed)
    return wire.problem(fault) if refused else None


async def _stream(connection: Peer, wire: ModelWire, speech: Speech, fault: Fault | None, pace: float) -> None:
    await connection.start_stream(_headers(speech.request))
    pieces = 0
    for sent, event in enumerate(wire.stream(speech)):
        if fault is not None and (event.stage == "ending" or (event.stage != "opening" and pieces >= fault.after)):
            await _break_off(connection, wire, speech, fault, sent)
            break
        if event.stage == "piece":
            await _sleep(pace if pieces else 0)
            pieces += 1
        await connection.send(event.data)
    await connection.end_stream()


async def _break_off(connection: Peer, wire: ModelWire, speech: Speech, fault: Fault, sent: int) -> None:
    await _stay_away(fault)
    if fault.kind == "malformed":
        name = f"event: {wire.piece_event}\n" if wire.piece_event else ""
        await connection.send(f'{name}data: {{"type": "\n\n'.encode())
    elif fault.kind in ERRORS:
        await connection.send(wire.broken(wire.problem(fault), speech, sent).data)


async def _send_whole(connection: Peer, wire: ModelWire, speech: Speech, fault: Fault | None) -> None:
    body = msgspec.json.encode(wire.whole(speech))
    headers = _headers(speech.request)
    half = len(body) // 2
    if fault is not None and fault.kind == "malformed":
        await connection.send_whole(200, body[:half], headers)
    elif fault is not None and fault.kind in {"hang", "cut"}:
        await connection.send_whole(200, body, headers, only=half)
        await _stay_away(fault)
    else:
        await connection.send_whole(200, body, headers)


async def _stay_away(fault: Fault) -> None:
    """Says nothing more, if that is the fault."""
    if fault.kind == "cut":
        raise CutHere
    if fault.kind == "hang":
        await asyncio.Event().wait()  # until the client leaves or the server stops


def _headers(request: Recorded) -> list[tuple[str, str]]:
    name = "request-id" if request.wire == "messages" else "x-request-id"
    return [(name, _request_id(request))]


def _request_id(request: Recorded) -> str:
    return f"req_{request.number}"


async def _sleep(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)
