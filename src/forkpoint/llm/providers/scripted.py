"""The model ``scripted/NAME``: answers that a script has chosen, in this process. Tests: tests/llm/test_scripts.py."""

import anyio
import anyio.lowlevel
import msgspec

from forkpoint.errors import AnswerMalformed, ContextTooLong, ModelUnavailable, RateLimited, RequestRefused
from forkpoint.events import Reasoning, ToolCall, Usage
from forkpoint.llm.answers import Answer, Said
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.failures import ModelErrorKind, error_for_status
from forkpoint.llm.request import Request
from forkpoint.llm.scripts import Fault, PromptCache, Reply, ScriptedCall, in_pieces, script_named
from forkpoint.llm.streams.parts import spoken, whole_answer
from forkpoint.updates import CallPiece, Piece, ReasoningPiece, TextPiece

_ERRORS: dict[str, ModelErrorKind] = {
    "authentication": RequestRefused.model_authentication,
    "quota": RequestRefused.model_quota,
    "rate_limit": RateLimited,
    "context_too_long": ContextTooLong,
    "refused": RequestRefused.model_refused,
    "bad_request": RequestRefused,
    "overloaded": ModelUnavailable,
    "cut": ModelUnavailable.model_connection,
    "malformed": AnswerMalformed,
    "unfinished": AnswerMalformed,
    "unfinished_call": AnswerMalformed,
    "empty": AnswerMalformed.model_empty,
    "refuses_cache_key": RequestRefused,
}


class ScriptedProvider:
    """Gives the replies of a script, piece by piece."""

    async def ask(self, request: Request, hearing: Hearing) -> Answer:
        body = msgspec.json.decode(request.body)
        script = script_named(request.llm.name)
        number, reply = script.reply(request.llm.name, body)
        calls = [_with_id(call, number, place) for place, call in enumerate(reply.calls)]
        pieces = _pieces(reply, calls)
        fault = reply.fault
        if fault is not None and fault.kind == "refuses_cache_key" and request.key is None:
            fault = None
        await _pass(reply.delay)
        for count, piece in enumerate(pieces):
            if fault is not None and count >= fault.after:
                break
            if count:
                await _pass(reply.pace)
            hearing.piece(piece)
        hearing.usage = _estimated(request, body, reply, script.cache) if reply.usage is None else reply.usage
        if fault is not None:
            await _fail(request.model, fault)
        return _answer(request, reply, calls)

    async def aclose(self) -> None:
        """Holds nothing open."""


async def _pass(seconds: float) -> None:
    await (anyio.sleep(seconds) if seconds > 0 else anyio.lowlevel.checkpoint())


async def _fail(model: str, fault: Fault) -> None:
    if fault.kind == "hang":
        await anyio.sleep_forever()
    said = fault.message or ("prompt_cache_key is not known" if fault.kind == "refuses_cache_key" else "as scripted")
    if fault.kind == "status":
        error = error_for_status(model, fault.status or 500, {"message": said}, {})
        error.retry_after = fault.retry_after
        raise error
    raise _ERRORS[fault.kind](model, said, retry_after=fault.retry_after)


def _with_id(call: ScriptedCall, number: int, place: int) -> ScriptedCall:
    return call if call.call_id else msgspec.structs.replace(call, call_id=f"call_{number + 1}_{place + 1}")


def _pieces(reply: Reply, calls: list[ScriptedCall]) -> list[Piece]:
    pieces: list[Piece] = [
        ReasoningPiece(part, index)
        for index, thought in enumerate(reply.thoughts)
        for part in in_pieces(thought, reply.piece)
    ]
    pieces += [TextPiece(part) for part in in_pieces(reply.text, reply.piece)]
    for index, call in enumerate(calls):
        for part in in_pieces(call.arguments, reply.piece):
            pieces.append(CallPiece(index, call.call_id or "", call.tool, part))
    return pieces


def _estimated(request: Request, body: object, reply: Reply, cache: PromptCache | None) -> Usage:
    thought = "".join(reply.thoughts)
    said = reply.text + thought + "".join(call.arguments for call in reply.calls)
    prompt = Usage(calls=1, input=len(request.body) // 4)
    if cache is not None:
        prompt = cache.of_body(body, wire="chat", key=request.key)
    return prompt + Usage(output=len(said) // 4 + 1, reasoning=len(thought) // 4)


def _answer(request: Request, reply: Reply, calls: list[ScriptedCall]) -> Answer:
    origin = request.rendering.manifest.origin
    said: list[Said] = [
        Reasoning(thought, provider=origin, item='{"in":"reasoning_content"}') for thought in reply.thoughts
    ]
    if message := spoken(reply.text, origin):
        said.append(message)
    said += [ToolCall(call.call_id or "", call.tool, call.arguments, provider=origin) for call in calls]
    return whole_answer(said, reply.finished, model=request.model, response_id=None)
