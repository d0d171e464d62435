"""A call ends in an answer or in one typed failure, whatever the server on the other side does."""

import asyncio
import importlib
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from anyio.abc import SocketStream
from tests.slow_import import SlowImport

from forkpoint import errors
from forkpoint.events import Envelope, ModelCalled, Reasoning, StagedEvent, Text, Usage, UserMessage
from forkpoint.llm import (
    LLM,
    CallContext,
    CallPiece,
    Complete,
    Failed,
    Models,
    Options,
    Outcome,
    Piece,
    Rendering,
    Restarted,
    Retries,
    TextPiece,
    Timeouts,
    ToolSchema,
    manifest_of,
    own_identity,
    render,
)
from forkpoint.llm.providers import sdk
from forkpoint.llm.scripts import Fault, FaultKind, Reply, Script, ScriptedCall
from forkpoint.testing.model_server import ModelServer

pytestmark = pytest.mark.anyio

WIRES = ("chat", "responses", "messages")
each_wire = pytest.mark.parametrize("wire", WIRES)
AT_ONCE = Retries(wait=0.0)
ONCE = Retries(attempts=1)
HELLO = Reply("Hello, how are you today?", piece=5)
CONTEXT = CallContext(own_identity("a conversation"))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(Script([HELLO], repeat=True)) as server:
        yield server


@pytest.fixture
async def models() -> "anyio.abc.AsyncResource":  # type: ignore[misc]
    async with Models(jitter=lambda: 0.0) as models:
        yield models


def llm_at(server: ModelServer, wire: str, **settings: object) -> LLM:
    """A model behind the server, on one of its wires."""
    given: dict[str, object] = {"retries": AT_ONCE} | settings
    if wire == "messages":
        return LLM("anthropic/a-model", base_url=server.root, **given)  # type: ignore[arg-type]
    return LLM("openai/a-model", api=wire, base_url=server.url, **given)  # type: ignore[arg-type]


def asks(llm: LLM, text: str = "Hi", **manifest: object) -> Rendering:
    """A prompt with one question."""
    question = StagedEvent(Envelope("user_message", 0, "user"), UserMessage((Text(text),)))
    return render(manifest_of(llm, **manifest), [question])  # type: ignore[arg-type]


def failure(outcome: Outcome) -> errors.ModelError:
    assert isinstance(outcome, Failed), f"the call should have failed, and was answered: {outcome}"
    return outcome.error


def answered(outcome: Outcome) -> Complete:
    assert isinstance(outcome, Complete), f"the call should have been answered, and failed: {outcome.error}"
    return outcome


@each_wire
async def test_an_answer_comes_in_pieces_and_then_whole(server: ModelServer, models: Models, wire: str) -> None:
    heard: list[Piece] = []
    llm = llm_at(server, wire)
    outcome = answered(await models.call(llm, asks(llm), CONTEXT, heard=heard.append))
    texts = [piece.text for piece in heard if isinstance(piece, TextPiece)]
    assert len(texts) > 1, "the answer came in one piece: it was not streamed"
    assert "".join(texts) == outcome.answer.text == HELLO.text
    assert outcome.answer.finish == "stop"
    assert outcome.called.first_token is not None
    assert outcome.called.duration >= outcome.called.first_token
    assert outcome.usage.calls == 1
    assert outcome.usage.input > 0
    assert outcome.usage.output > 0


@each_wire
async def test_the_bytes_that_a_call_sends_are_those_that_were_announced(
    server: ModelServer, models: Models, wire: str
) -> None:
    llm = llm_at(server, wire, headers=(("x-mine", "yes"),))
    rendering = asks(llm, instructions="Be kind.", tools=[ToolSchema("look")])
    announced = models.request(llm, rendering, CONTEXT)
    answered(await models.call(llm, rendering, CONTEXT))
    assert server.last.body == announced.body
    assert server.last.header("x-mine") == "yes"
    assert server.last.header("x-session-id") == CONTEXT.identity.session
    assert server.last.header("content-type") == "application/json"


@each_wire
async def test_tool_calls_and_thoughts_come_back_as_they_were_said(models: Models, wire: str) -> None:
    calls = (ScriptedCall("look", '{"at": "north"}'), ScriptedCall("look", '{"at":   "south"}'))
    reply = Reply("I shall look.", reasoning="Where is it?", calls=calls)
    with ModelServer(Script([reply])) as server:
        heard: list[Piece] = []
        llm = llm_at(server, wire, reasoning_effort="high")
        outcome = answered(await models.call(llm, asks(llm, tools=[ToolSchema("look")]), CONTEXT, heard=heard.append))
    assert [call.arguments for call in outcome.answer.calls] == [call.arguments for call in calls]
    assert outcome.answer.finish == "tool_calls"
    thought = next(body for body in outcome.answer.said if isinstance(body, Reasoning))
    assert thought.text == "Where is it?"
    pieces = [piece for piece in heard if isinstance(piece, CallPiece)]
    assert {piece.call_id for piece in pieces if piece.call_id} == {call.call_id for call in outcome.answer.calls}
    for call in outcome.answer.calls:
        assert "".join(p.arguments for p in pieces if p.call_id == call.call_id) == call.arguments


FAILURES: dict[FaultKind, errors.ErrorKind] = {
    "authentication": errors.RequestRefused.model_authentication,
    "quota": errors.RequestRefused.model_quota,
    "rate_limit": errors.RateLimited,
    "context_too_long": errors.ContextTooLong,
    "refused": errors.RequestRefused.model_refused,
    "bad_request": errors.RequestRefused,
    "overloaded": errors.ModelUnavailable,
    "cut": errors.ModelUnavailable.model_connection,
    "malformed": errors.AnswerMalformed,
    "unfinished": errors.AnswerMalformed,
}


@each_wire
@pytest.mark.parametrize(("kind", "after"), [(kind, after) for kind in FAILURES for after in (0, 2)])
async def test_each_way_to_fail_has_its_error(models: Models, wire: str, kind: FaultKind, after: int) -> None:
    reply = Reply(HELLO.text, piece=5, fault=Fault(kind, after=after))
    if kind == "refused":  # text that a filter has stopped would be an answer
        reply = Reply(reasoning=HELLO.text, piece=5, fault=reply.fault)
    heard: list[Piece] = []
    with ModelServer(Script([reply])) as server:
        llm = llm_at(server, wire, retries=ONCE)
        error = failure(await models.call(llm, asks(llm), CONTEXT, heard=heard.append))
    assert error.code == FAILURES[kind].code, f"{kind} came out as {error!r}: {error}"
    assert error.model == llm.model
    assert len(heard) == after


@each_wire
async def test_an_answer_with_nothing_in_it_is_an_empty_one(models: Models, wire: str) -> None:
    with ModelServer(Script([Reply(fault=Fault("empty"))])) as server:
        llm = llm_at(server, wire, retries=ONCE)
        assert errors.AnswerMalformed.model_empty.made(failure(await models.call(llm, asks(llm), CONTEXT)))


@each_wire
async def test_a_tool_call_that_was_cut_off_is_no_answer(models: Models, wire: str) -> None:
    calls = (ScriptedCall("look", '{"at": "a place far away"}'),)
    reply = Reply(calls=calls, piece=6, fault=Fault("unfinished_call", after=2))
    with ModelServer(Script([reply])) as server:
        llm = llm_at(server, wire, retries=ONCE)
        error = failure(await models.call(llm, asks(llm, tools=[ToolSchema("look")]), CONTEXT))
    assert isinstance(error, errors.AnswerMalformed)


@each_wire
@pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 418, 404, 409])
async def test_a_bare_status_is_told_apart_by_its_number(models: Models, wire: str, status: int) -> None:
    reply = Reply(fault=Fault("status", status=status))
    with ModelServer(Script([reply])) as server:
        llm = llm_at(server, wire, retries=ONCE)
        error = failure(await models.call(llm, asks(llm), CONTEXT))
    assert error.passing == (status >= 500 or status == 409)


@each_wire
async def test_a_passing_failure_is_tried_again_until_it_works(models: Models, wire: str) -> None:
    replies = [Reply(fault=Fault("overloaded")), Reply(HELLO.text, fault=Fault("cut", after=1)), HELLO]
    with ModelServer(Script(replies)) as server:
        llm = llm_at(server, wire)
        heard: list[Piece] = []
        outcome = answered(await models.call(llm, asks(llm), CONTEXT, heard=heard.append))
        bodies = {request.body for request in server.requests}
    assert outcome.called.attempts == 3
    assert len(bodies) == 1, "a repeated call must send the same bytes"
    assert [piece for piece in heard if isinstance(piece, Restarted)] == [Restarted("model_connection")]
    after = heard[heard.index(Restarted("model_connection")) + 1 :]
    assert "".join(piece.text for piece in after if isinstance(piece, TextPiece)) == HELLO.text


@each_wire
async def test_a_call_whose_pieces_are_final_is_not_tried_again_once_it_spoke(models: Models, wire: str) -> None:
    replies = [Reply(fault=Fault("overloaded")), Reply(HELLO.text, fault=Fault("cut", after=1)), HELLO]
    with ModelServer(Script(replies)) as server:
        llm = llm_at(server, wire)
        heard: list[Piece] = []
        error = failure(await models.call(llm, asks(llm), CONTEXT, heard=heard.append, final=True))
        assert len(server.requests) == 2, "the first attempt said nothing, so a second was safe; a third was not"
    assert errors.ModelUnavailable.model_connection.made(error)
    assert not any(isinstance(piece, Restarted) for piece in heard)


@pytest.mark.parametrize("kind", ["authentication", "quota", "context_too_long", "refused", "bad_request"])
async def test_a_lasting_failure_is_not_tried_again(models: Models, kind: FaultKind) -> None:
    with ModelServer(Script([Reply(fault=Fault(kind)), HELLO])) as server:
        llm = llm_at(server, "chat")
        failure(await models.call(llm, asks(llm), CONTEXT))
        assert len(server.requests) == 1


@each_wire
async def test_a_provider_that_says_how_long_to_wait_is_obeyed(models: Models, wire: str) -> None:
    with ModelServer(Script([Reply(fault=Fault("rate_limit", retry_after=0.2)), HELLO])) as server:
        llm = llm_at(server, wire)
        outcome = answered(await models.call(llm, asks(llm), CONTEXT))
    assert outcome.called.duration >= 0.2


async def test_a_provider_that_asks_for_too_long_a_wait_is_not_waited_for(models: Models) -> None:
    with ModelServer(Script([Reply(fault=Fault("rate_limit", retry_after=3600)), HELLO])) as server:
        llm = llm_at(server, "chat")
        error = failure(await models.call(llm, asks(llm), CONTEXT))
        assert len(server.requests) == 1
    assert error.retry_after == 3600


async def test_the_last_failure_is_the_outcome_when_all_attempts_are_used(models: Models) -> None:
    with ModelServer(Script([Reply(fault=Fault("overloaded"))] * 3 + [HELLO])) as server:
        llm = llm_at(server, "chat")
        outcome = await models.call(llm, asks(llm), CONTEXT)
        assert len(server.requests) == 3
    assert outcome.called.attempts == 3
    assert outcome.called.error == "model_overloaded"


# Waiting.


async def test_what_is_loaded_before_the_first_call_is_no_silence_of_the_server(
    server: ModelServer, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("openai")
    slow = SlowImport(monkeypatch, "openai")
    llm = llm_at(server, "chat", timeouts=Timeouts(first=5, idle=5, total=10), retries=ONCE)
    answered(await models.call(llm, asks(llm), CONTEXT))
    assert slow.imported == 1


async def test_a_call_that_is_tried_again_after_an_import_has_all_of_its_time(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("openai")
    SlowImport(monkeypatch, "openai")
    with ModelServer(Script([Reply(fault=Fault("overloaded")), HELLO])) as server:
        llm = llm_at(server, "chat", timeouts=Timeouts(total=10))
        assert answered(await models.call(llm, asks(llm), CONTEXT)).called.attempts == 2


async def test_a_call_is_not_tried_again_while_whoever_asked_will_ask_again(models: Models) -> None:
    with ModelServer(Script([Reply(fault=Fault("overloaded"))], repeat=True)) as server:
        llm, patience = llm_at(server, "chat"), iter([False, True])
        outcome = await models.call(llm, asks(llm), CONTEXT, retried=lambda: next(patience))
        assert (failure(outcome).code, outcome.called.attempts) == ("model_overloaded", 2)
        assert len(server.requests) == 2


@each_wire
async def test_a_server_that_says_nothing_is_given_up(models: Models, wire: str) -> None:
    with ModelServer(Script([Reply(fault=Fault("hang"))])) as server:
        llm = llm_at(server, wire, timeouts=Timeouts(first=0.1), retries=ONCE)
        error = failure(await models.call(llm, asks(llm), CONTEXT))
        await server.idle()
    assert errors.ModelUnavailable.model_timeout.made(error)
    assert "within 0.1 s" in error.detail


@each_wire
async def test_a_server_that_stops_in_the_middle_is_given_up(models: Models, wire: str) -> None:
    with ModelServer(Script([Reply(HELLO.text, piece=5, fault=Fault("hang", after=2))])) as server:
        llm = llm_at(server, wire, timeouts=Timeouts(idle=0.1), retries=ONCE)
        error = failure(await models.call(llm, asks(llm), CONTEXT))
        await server.idle()
    assert errors.ModelUnavailable.model_timeout.made(error)
    assert "in the middle" in error.detail


async def test_an_answer_that_drips_for_ever_is_given_up(models: Models) -> None:
    with ModelServer(Script([Reply("x" * 10_000, piece=1, pace=0.02)])) as server:
        llm = llm_at(server, "chat", timeouts=Timeouts(total=0.3))
        outcome = await models.call(llm, asks(llm), CONTEXT)
        assert len(server.requests) == 1, "there was no time for a second attempt"
    assert errors.ModelUnavailable.model_timeout.made(failure(outcome))
    assert "the whole answer" in failure(outcome).detail


async def test_a_server_that_is_not_there_is_a_lost_connection(models: Models) -> None:
    with ModelServer(Script([HELLO])) as server:
        url = server.url
    llm = LLM("openai/a-model", base_url=url, retries=ONCE)
    assert errors.ModelUnavailable.model_connection.made(failure(await models.call(llm, asks(llm), CONTEXT)))


async def test_a_server_that_answers_with_a_web_page_makes_no_sense(models: Models) -> None:
    with ModelServer(Script([HELLO])) as server:
        llm = LLM("openai/a-model", base_url=f"{server.root}/elsewhere", retries=ONCE)
        assert isinstance(failure(await models.call(llm, asks(llm), CONTEXT)), errors.RequestRefused)


# What was spent.


@each_wire
async def test_what_failed_attempts_spent_is_counted_too(models: Models, wire: str) -> None:
    used = Usage(calls=1, input=1000, cached=400, output=50)
    replies = [Reply(fault=Fault("empty"), usage=used), Reply(HELLO.text, usage=used)]
    with ModelServer(Script(replies)) as server:
        llm = llm_at(server, wire)
        outcome = answered(await models.call(llm, asks(llm), CONTEXT))
    assert outcome.usage == Usage(calls=2, input=2000, cached=800, output=100, unpriced=2)


async def test_what_is_known_to_be_spent_is_counted_when_the_answer_breaks_off(models: Models) -> None:
    used = Usage(calls=1, input=1000, cached=400, output=50)
    with ModelServer(Script([Reply(HELLO.text, piece=5, usage=used, fault=Fault("cut", after=2))])) as server:
        llm = llm_at(server, "messages", retries=ONCE)
        outcome = await models.call(llm, asks(llm), CONTEXT)
    assert isinstance(outcome, Failed)
    assert (outcome.usage.input, outcome.usage.cached) == (1000, 400), "this wire says so at the start of an answer"


@each_wire
async def test_a_cancelled_call_ends_at_once_and_is_recorded_once(models: Models, wire: str) -> None:
    records: list[ModelCalled] = []
    used = Usage(calls=1, input=1000, output=1)
    with ModelServer(Script([Reply(HELLO.text, piece=5, usage=used, fault=Fault("hang", after=1))])) as server:
        llm = llm_at(server, wire)
        with anyio.CancelScope() as scope:
            await models.call(llm, asks(llm), CONTEXT, heard=lambda _: scope.cancel(), record=records.append)
        assert scope.cancelled_caught
        await server.idle()  # the server sees that nobody listens any more
    (record,) = records
    assert record.error == "cancelled"
    assert record.finish is None
    assert record.usage.input == (1000 if wire == "messages" else 0)


@each_wire
@pytest.mark.parametrize("natively", [False, True], ids=["by a scope", "by task.cancel"])
async def test_a_call_can_be_cancelled_at_every_await_and_is_recorded_once(
    server: ModelServer, models: Models, wire: str, natively: bool
) -> None:
    llm = llm_at(server, wire)
    answered(await models.call(llm, asks(llm), CONTEXT))  # from here on nothing has to be loaded
    ends: set[str | None] = set()
    for steps in range(0, 400, 3):
        records: list[ModelCalled] = []
        scope = anyio.CancelScope()

        async def ask(scope: anyio.CancelScope = scope, records: list[ModelCalled] = records) -> None:
            with scope:
                await models.call(llm, asks(llm), CONTEXT, record=records.append)

        task = asyncio.create_task(ask())
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        if natively:
            task.cancel()
        else:
            scope.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert len(records) == 1 or (not steps and not records), f"cancelled after {steps} steps: {records}"
        ends |= {record.error for record in records}
        if None in ends:
            break
    assert ends == {"cancelled", None}, "the call was never cancelled on its way, or never came to its end"
    await server.idle()
    assert answered(await models.call(llm, asks(llm), CONTEXT)).answer.text == HELLO.text


@each_wire
async def test_every_call_is_recorded_with_what_explains_its_cache(
    server: ModelServer, models: Models, wire: str
) -> None:
    records: list[ModelCalled] = []
    llm = llm_at(server, wire)
    rendering = asks(llm, instructions="Be kind.")
    outcome = answered(await models.call(llm, rendering, CONTEXT, record=records.append))
    assert records == [outcome.called]
    assert outcome.called.key == (None if wire == "messages" else CONTEXT.identity.key)
    assert outcome.called.prefix == rendering.blocks.digest.hex()
    assert outcome.called.manifest == rendering.manifest.hash
    assert outcome.called.blocks == 2
    assert outcome.called.provider == f"127.0.0.1/{wire}"
    assert outcome.called.response_id


# The cache key.


def test_auto_is_how_a_cache_key_is_sent() -> None:
    assert LLM("openai/a-model").cache_key == "auto"


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_server_that_refuses_the_cache_key_is_asked_again_without_and_remembered(
    models: Models, wire: str
) -> None:
    reply = Reply(HELLO.text, fault=Fault("refuses_cache_key"))
    with ModelServer(Script([reply], repeat=True)) as server:
        llm = llm_at(server, wire, retries=ONCE)
        first = answered(await models.call(llm, asks(llm), CONTEXT))
        second = answered(await models.call(llm, asks(llm), CONTEXT))
        keys = [request.key for request in server.requests]
    assert keys == [CONTEXT.identity.key, None, None]
    assert first.called.key is None
    assert first.called.attempts == second.called.attempts == 1


async def test_what_one_server_refuses_another_still_gets(models: Models) -> None:
    refuses = Script([Reply(HELLO.text, fault=Fault("refuses_cache_key"))], repeat=True)
    with ModelServer(refuses) as refusing, ModelServer(Script([HELLO])) as other:
        for server in (refusing, other):
            llm = llm_at(server, "chat")
            answered(await models.call(llm, asks(llm), CONTEXT))
        assert other.last.key == CONTEXT.identity.key


async def test_a_key_that_must_be_sent_is_sent_even_if_it_is_refused(models: Models) -> None:
    with ModelServer(Script([Reply(HELLO.text, fault=Fault("refuses_cache_key"))], repeat=True)) as server:
        llm = llm_at(server, "chat", cache_key="send")
        assert isinstance(failure(await models.call(llm, asks(llm), CONTEXT)), errors.RequestRefused)
        assert [request.key for request in server.requests] == [CONTEXT.identity.key]


@each_wire
async def test_never_means_that_no_cache_key_is_sent(server: ModelServer, models: Models, wire: str) -> None:
    llm = llm_at(server, wire, cache_key="never", session_headers=())
    answered(await models.call(llm, asks(llm), CONTEXT))
    assert CONTEXT.identity.key.encode() not in server.last.body
    assert CONTEXT.identity.session not in str(server.last.headers)


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_tenants_are_kept_apart_by_a_salt_where_a_server_takes_one(
    server: ModelServer, models: Models, wire: str
) -> None:
    llm = llm_at(server, wire, cache_salt=True)
    for tenant, conversation in (("a", "1"), ("a", "2"), ("b", "3")):
        context = CallContext(own_identity(conversation), tenant)
        answered(await models.call(llm, asks(llm), context))
    salts = [request.json["cache_salt"] for request in server.requests]
    assert salts[0] == salts[1] != salts[2]


async def test_the_keys_of_other_companies_stay_at_home(
    server: ModelServer, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, f"secret-{name}")
    for wire in WIRES:
        llm = llm_at(server, wire)
        answered(await models.call(llm, asks(llm), CONTEXT))
        assert "secret-" not in str(server.last.headers)


async def test_a_key_is_looked_up_for_each_call(
    server: ModelServer, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_at(server, "chat", api_key_env="MY_KEY")
    with pytest.raises(errors.MissingKey, match="MY_KEY"):
        await models.call(llm, asks(llm), CONTEXT)
    for key in ("one", "two"):
        monkeypatch.setenv("MY_KEY", key)
        answered(await models.call(llm, asks(llm), CONTEXT))
        assert server.last.header("authorization") == f"Bearer {key}"


async def test_a_key_that_a_server_repeats_is_not_shown(models: Models) -> None:
    with ModelServer(Script([Reply(fault=Fault("authentication", message="no such key: very-secret"))])) as server:
        llm = llm_at(server, "chat", api_key="very-secret")
        error = failure(await models.call(llm, asks(llm), CONTEXT))
    assert "very-secret" not in str(error)
    assert "***" in str(error)


@each_wire
async def test_what_a_call_asks_for_reaches_the_server(server: ModelServer, models: Models, wire: str) -> None:
    llm = llm_at(server, wire, temperature=0.5, top_p=0.9, max_tokens=77, extra='{"mine": {"b": 1, "a": 2}}')
    rendering = asks(llm, tools=[ToolSchema("look"), ToolSchema("act")], output='{"type":"object"}')
    options = Options(tool_choice="look", parallel_calls=False)
    answered(await models.call(llm, rendering, CONTEXT, options))
    body = server.last.json
    assert body["temperature"] == 0.5
    assert body["top_p"] == 0.9
    assert 77 in (body.get("max_tokens"), body.get("max_output_tokens"))
    assert body["mine"] == {"b": 1, "a": 2}
    assert b'"mine":{"b": 1, "a": 2}' in server.last.body
    assert "look" in str(body["tool_choice"])
    names = [tool.get("name") or tool["function"]["name"] for tool in body["tools"]]
    assert names == ["act", "look"]
    assert "json_schema" in str(body)


# Many at once.


async def test_any_number_of_calls_share_one_client(server: ModelServer, models: Models) -> None:
    llm = llm_at(server, "chat")
    outcomes: list[Outcome] = []

    async def ask() -> None:
        outcomes.append(await models.call(llm, asks(llm), CONTEXT))

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(ask)
    assert all(isinstance(outcome, Complete) for outcome in outcomes)
    assert server.connections <= 50


def test_threads_with_loops_of_their_own_can_share_it_too(server: ModelServer) -> None:
    models = Models()
    llm = llm_at(server, "chat")
    outcomes: list[Outcome] = []

    async def ask() -> None:
        outcomes.extend([await models.call(llm, asks(llm), CONTEXT) for _ in range(3)])
        await models.aclose()  # each loop closes its own connections

    threads = [threading.Thread(target=anyio.run, args=(ask,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(outcome, Complete) for outcome in outcomes) == 12


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the SDK leaves a generator open there
@each_wire
def test_it_works_on_trio(server: ModelServer, wire: str) -> None:
    llm = llm_at(server, wire)

    async def ask() -> Outcome:
        async with Models() as models:
            return await models.call(llm, asks(llm), CONTEXT)

    assert answered(anyio.run(ask, backend="trio")).answer.text == HELLO.text


# What callers and servers do that is not in any plan.


@each_wire
async def test_what_the_caller_s_own_function_raises_is_raised_and_nothing_is_asked_again(
    server: ModelServer, models: Models, wire: str
) -> None:
    def heard(piece: Piece) -> None:
        raise ValueError("cannot be shown on this terminal")

    records: list[ModelCalled] = []
    llm = llm_at(server, wire)
    with pytest.raises(ValueError, match="this terminal"):
        await models.call(llm, asks(llm), CONTEXT, heard=heard, record=records.append)
    assert len(server.requests) == 1
    assert [record.error for record in records] == ["error"]


async def test_a_call_that_is_never_made_is_not_recorded_as_one(models: Models) -> None:
    records: list[ModelCalled] = []
    llm = LLM("openai/a-model", api_key_env="NOT_SET_ANYWHERE")
    with pytest.raises(errors.MissingKey):
        await models.call(llm, asks(llm), CONTEXT, record=records.append)
    assert records == []


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_comments_and_pings_are_signs_of_life(models: Models, wire: str) -> None:
    said = {"chat": (b": PROCESSING\n\n", CHAT_END), "messages": (b"event: ping\ndata: {}\n\n", MESSAGES_END)}[wire]
    async with raw_server([said[0]] * 12 + [said[1]], pause=0.05) as address:
        base_url = address if wire == "messages" else f"{address}/v1"
        kind = "anthropic" if wire == "messages" else "openai"
        waits = Timeouts(first=0.3, idle=0.3)
        llm = LLM(f"{kind}/a-model", base_url=base_url, timeouts=waits, retries=ONCE)
        outcome = answered(await models.call(llm, asks(llm), CONTEXT))
    assert outcome.answer.text == "Hi"


async def test_a_call_whose_server_says_nothing_of_its_cost_counts_as_one_of_unknown_cost(models: Models) -> None:
    async with raw_server([CHAT_END]) as address:
        llm = LLM("openai/a-model", base_url=f"{address}/v1", retries=ONCE)
        outcome = answered(await models.call(llm, asks(llm), CONTEXT))
    assert outcome.usage == Usage(calls=1, unpriced=1)


@pytest.mark.parametrize("ends", [True, False])
async def test_an_answer_that_is_whole_is_not_waited_for_and_its_connection_is_used_again_only_if_it_ended(
    models: Models, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    assert sdk._LEFT <= 1
    monkeypatch.setattr(sdk, "_LEFT", 20 if ends else 0.05)
    async with keeping_server(ends=ends) as (address, connections):
        llm = LLM("openai/a-model", base_url=f"{address}/v1", retries=ONCE)
        for _ in range(2):
            with anyio.fail_after(10):
                outcome = answered(await models.call(llm, asks(llm), CONTEXT))
                assert outcome.answer.text == "Hi"
                if not ends:
                    await connections[-1].left.wait()
        assert [one.asked for one in connections] == ([2] if ends else [1, 1])


@each_wire
async def test_an_answer_that_was_cut_off_by_its_limit_is_not_paid_for_again(models: Models, wire: str) -> None:
    calls = (ScriptedCall("look", '{"at": "a place far away"}'),)
    with ModelServer(Script([Reply(calls=calls, piece=6, fault=Fault("unfinished_call"))], repeat=True)) as server:
        llm = llm_at(server, wire)
        error = failure(await models.call(llm, asks(llm, tools=[ToolSchema("look")]), CONTEXT))
        assert len(server.requests) == 1
    assert "max_tokens" in str(error) or "unfinished" in str(error)


async def test_a_busy_client_is_not_closed_when_there_are_many_keys(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.llm.providers.clients.MOST", 1)
    with ModelServer(Script([HELLO], repeat=True)) as server:
        outcomes: list[Outcome] = []

        async def ask(key: str) -> None:
            llm = llm_at(server, "chat", api_key=key, retries=ONCE)
            outcomes.append(await models.call(llm, asks(llm), CONTEXT))

        async with anyio.create_task_group() as tasks:
            with server.holding():
                for number in range(8):
                    tasks.start_soon(ask, f"key-{number}")
                await server.heard(8)
        assert {request.header("authorization") for request in server.requests} == {
            f"Bearer key-{number}" for number in range(8)
        }
    assert [type(outcome) for outcome in outcomes] == [Complete] * 8


def test_clients_of_a_loop_that_has_ended_are_no_hindrance(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.llm.providers.clients.MOST", 1)
    models = Models()

    async def ask(key: str) -> Outcome:
        llm = llm_at(server, "chat", api_key=key)
        try:
            return await models.call(llm, asks(llm), CONTEXT)
        finally:
            await models.aclose()

    for key in ("one", "two", "three"):
        answered(anyio.run(ask, key))


async def test_headers_that_the_environment_holds_for_a_company_are_not_sent_to_another(
    server: ModelServer, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_CUSTOM_HEADERS", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "Authorization: Bearer secret-gateway\nX-Gateway: secret-too")
    for wire in WIRES:
        llm = llm_at(server, wire)
        answered(await models.call(llm, asks(llm), CONTEXT))
        assert "secret" not in str(server.last.headers)
        assert server.last.header("authorization") is None


def test_a_prompt_that_was_made_for_another_model_is_not_sent() -> None:
    made_for, asked = LLM("openai/one"), LLM("anthropic/another")
    with pytest.raises(errors.BadSetting, match="rendered for another"):
        Models().request(asked, asks(made_for), CONTEXT)


def test_a_tool_that_is_not_there_cannot_be_demanded() -> None:
    llm = LLM("openai/one")
    with pytest.raises(errors.BadSetting, match="no tool 'look'"):
        Models().request(llm, asks(llm), CONTEXT, Options(tool_choice="look"))


CHAT_END = (
    b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
KEPT_OPEN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n"
MESSAGES_END = b"".join(
    b"event: %s\ndata: %s\n\n" % (event, data)
    for event, data in (
        (b"message_start", b'{"type":"message_start","message":{"id":"1","usage":{"input_tokens":5}}}'),
        (
            b"content_block_start",
            b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Hi"}}',
        ),
        (b"content_block_stop", b'{"type":"content_block_stop"}'),
        (b"message_delta", b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}'),
        (b"message_stop", b'{"type":"message_stop"}'),
    )
)


@asynccontextmanager
async def raw_server(chunks: list[bytes], *, pause: float = 0.0) -> AsyncIterator[str]:
    """A server that sends exactly these bytes, with a pause before each, to whoever asks."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for chunk in chunks:
                await anyio.sleep(pause)
                await stream.send(chunk)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port}"
        tasks.cancel_scope.cancel()


class Connection:
    """What a server saw of one."""

    def __init__(self) -> None:
        self.asked = 0  # how often
        self.left = anyio.Event()  # by the client


@asynccontextmanager
async def keeping_server(*, ends: bool) -> AsyncIterator[tuple[str, list[Connection]]]:
    """A server that keeps its connections, and says all of an answer; that this was its end, it says or never does."""
    connections: list[Connection] = []

    async def serve(stream: SocketStream) -> None:
        one = Connection()
        connections.append(one)
        said = b""
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    said += await stream.receive()
                    head, _, body = said.partition(b"\r\n\r\n")
                    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                    if length is not None and len(body) == int(length[1]):
                        one.asked, said = one.asked + 1, b""
                        await stream.send(KEPT_OPEN % (len(CHAT_END), CHAT_END) + (b"0\r\n\r\n" if ends else b""))
            one.left.set()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port}", connections
        tasks.cancel_scope.cancel()
