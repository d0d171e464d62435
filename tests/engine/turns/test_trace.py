"""Turns as spans: what a trace shows of a turn, however it ends, and what it never shows."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from tests.conversation.support.agents import PATIENCE, Answers, Watcher, agent_of, asks, call, scripted

from forkpoint import Agent, AsyncConversation, TurnCancelled, TurnFailed, tool
from forkpoint.engine.turns.trace import traced
from forkpoint.errors import OutcomeUnknown
from forkpoint.events import Usage
from forkpoint.llm import LLM, Retries
from forkpoint.testing import Fault, Heard, Reply, Script
from forkpoint.updates import CallStarted, TurnStarted

pytestmark = pytest.mark.anyio

SECRET = "swordfish"
OVERLOADED = Reply(fault=Fault("overloaded"))


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all]

    def of(self, operation: str) -> list[ReadableSpan]:
        return [span for span in self.all if attributes(span).get("gen_ai.operation.name") == operation]

    def one(self, operation: str) -> ReadableSpan:
        (span,) = self.of(operation)
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The spans of this test: the provider is this process's for as long as it runs, and no longer."""
    spans = Spans()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans.exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield spans
    provider.shutdown()


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def times(span: ReadableSpan) -> tuple[int, int]:
    """When a span began and ended, in nanoseconds."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def is_in(span: ReadableSpan, outer: ReadableSpan) -> bool:
    return span.parent is not None and outer.context is not None and span.parent.span_id == outer.context.span_id


def failed_as(span: ReadableSpan) -> str | None:
    """The error's type of a span that failed; None for one that did not."""
    if span.status.status_code is StatusCode.ERROR:
        return str(attributes(span)["error.type"])
    assert "error.type" not in attributes(span)
    assert span.status.status_code is StatusCode.UNSET
    return None


@tool
def look(where: str) -> str:
    """Looks."""
    return f"{SECRET} in {where}"


async def test_a_turn_is_a_span_with_its_model_calls_and_its_tools_in_it(spans: Spans) -> None:
    usage = Usage(calls=1, input=100, cached=60, written=30, output=7, reasoning=2)
    answers = [Reply("", calls=(call("look", "c1", where="x"),), usage=usage), Reply("Fine.", usage=usage)]
    agent = agent_of(answers, tools=[look], name="scout")
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn = await conversation.run("hi")
        model = agent.llm.name
        assert spans.names == [f"chat {model}", "execute_tool look", f"chat {model}", "invoke_agent scout"]
        outer = spans.one("invoke_agent")
        assert outer.parent is None
        assert all(is_in(span, outer) for span in spans.all[:-1])
        assert outer.kind is SpanKind.INTERNAL
        assert attributes(outer) == {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "scripted",
            "gen_ai.request.model": model,
            "gen_ai.agent.name": "scout",
            "gen_ai.conversation.id": conversation.id,
            "gen_ai.usage.input_tokens": 200,
            "gen_ai.usage.output_tokens": 14,
            "gen_ai.usage.cache_read.input_tokens": 120,
            "gen_ai.usage.cache_creation.input_tokens": 60,
            "gen_ai.usage.reasoning.output_tokens": 4,
            "forkpoint.tenant": "default",
            "forkpoint.turn.id": turn.id,
            "forkpoint.turn.resumed": False,
            "forkpoint.turn.outcome": "committed",
        }


async def test_a_model_call_has_what_the_conventions_name_and_lasts_as_long_as_the_call(spans: Spans) -> None:
    usage = Usage(calls=1, input=100, cached=60, written=30, output=7, reasoning=2)
    async with AsyncConversation(agent_of([Reply("Fine.", usage=usage)]), store="memory:") as conversation:
        (called,) = (await conversation.run("hi")).steps
    chat, outer = spans.one("chat"), spans.one("invoke_agent")
    assert chat.kind is SpanKind.CLIENT
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": called.model.removeprefix("scripted/"),
        "gen_ai.conversation.id": conversation.id,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": called.first_token,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_creation.input_tokens": 30,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "forkpoint.tenant": "default",
        "forkpoint.attempts": 1,
    }
    if called.response_id is not None:
        expected["gen_ai.response.id"] = called.response_id
    assert attributes(chat) == expected
    started, ended = times(chat)
    assert ended - started == int(called.duration * 1e9)
    assert times(outer)[0] <= started <= ended <= times(outer)[1]


async def test_every_attribute_is_one_that_the_conventions_have_or_our_own(spans: Spans) -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv.attributes import error_attributes

    modules = (gen_ai_attributes, error_attributes)
    known = {value for module in modules for name, value in vars(module).items() if name.isupper()}
    answers = [asks(call("look", where="x"), call("none")), OVERLOADED]
    async with AsyncConversation(agent_of(answers, tools=[look]), store="memory:") as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("hi")
    used = {name for span in spans.all for name in attributes(span)}
    assert {name for name in used if not name.startswith("forkpoint.")} <= known
    assert "error.type" in used


async def test_nothing_that_was_said_asked_for_or_answered_is_in_a_trace(spans: Spans) -> None:
    @tool
    def breaks(where: str) -> str:
        """Breaks."""
        raise RuntimeError(f"{SECRET} again")

    odd = call(f"the {SECRET}!", "c3")
    answers = [
        Reply(f"{SECRET} it is", reasoning=SECRET, calls=(call("look", where=SECRET), call("breaks", where="y"), odd)),
        Reply(fault=Fault("bad_request", message=SECRET)),
    ]
    agent = agent_of(answers, tools=[look, breaks], instructions=SECRET)
    async with AsyncConversation(agent, store="memory:") as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run(f"say {SECRET}")
        key = (await conversation.info()).cache.key
    told = "".join(span.to_json() for span in spans.all)
    assert SECRET not in told
    assert key not in told
    assert len(spans.of("execute_tool")) == 3
    assert "execute_tool" in spans.names, "a name that no tool can have is not shown"


async def test_tools_that_run_at_once_each_have_their_span_and_are_current_in_it(spans: Spans) -> None:
    both = anyio.Event()
    waiting: list[str] = []
    seen: dict[str, int] = {}

    @tool
    async def meet(name: str) -> str:
        """Waits for the other."""
        waiting.append(name)
        if len(waiting) == 2:
            both.set()
        with anyio.fail_after(PATIENCE):
            await both.wait()
        seen[name] = trace.get_current_span().get_span_context().span_id
        return name

    @tool
    def plain() -> str:
        """Runs in a thread."""
        seen["plain"] = trace.get_current_span().get_span_context().span_id
        return "done"

    answers: Answers = [
        asks(call("meet", "a", name="a"), call("meet", "b", name="b")),
        asks(call("plain", "plain")),
        "Fine.",
    ]
    async with AsyncConversation(agent_of(answers, tools=[meet, plain]), store="memory:") as conversation:
        await conversation.run("hi")
    tools = spans.of("execute_tool")
    assert {attributes(span)["gen_ai.tool.call.id"]: span.context.span_id for span in tools if span.context} == seen
    assert all(is_in(span, spans.one("invoke_agent")) for span in tools)
    assert [failed_as(span) for span in tools] == [None, None, None]


async def test_while_a_model_is_asked_the_turns_span_is_the_current_one(spans: Spans) -> None:
    current: list[int] = []

    def answer(heard: Heard) -> Reply:
        current.append(trace.get_current_span().get_span_context().span_id)
        return asks(call("look", where="x")) if len(current) == 1 else Reply("Fine.")

    async with AsyncConversation(agent_of(answer, tools=[look]), store="memory:") as conversation:
        await conversation.run("hi")
    outer = spans.one("invoke_agent").context
    assert outer is not None
    assert current == [outer.span_id, outer.span_id], "before a tool ran, and after"


async def test_a_tools_failure_is_its_spans_and_not_the_turns(spans: Spans) -> None:
    @tool
    def breaks() -> str:
        """Breaks."""
        raise RuntimeError("no")

    async with AsyncConversation(agent_of([asks(call("breaks")), "Oh."], tools=[breaks]), store="memory:") as c:
        await c.run("hi")
    assert failed_as(spans.one("execute_tool")) == "failed"
    assert failed_as(spans.one("invoke_agent")) is None


async def test_a_failed_call_fails_the_turns_span_and_its_resumption_is_another(spans: Spans) -> None:
    usage = Usage(calls=1, input=10, output=1)
    answers = [Reply("", calls=(call("look", where="x"),), usage=usage), OVERLOADED, Reply("Fine.", usage=usage)]
    async with AsyncConversation(agent_of(answers, tools=[look]), store="memory:") as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("hi")
        assert [failed_as(span) for span in spans.of("chat")] == [None, "model_overloaded"]
        first = spans.one("invoke_agent")
        assert failed_as(first) == "model_overloaded"
        assert attributes(first)["forkpoint.turn.outcome"] == "failed"
        turn = await conversation.resume()
    again = spans.of("invoke_agent")[1]
    assert failed_as(again) is None
    assert attributes(again)["forkpoint.turn.id"] == attributes(first)["forkpoint.turn.id"] == turn.id
    assert attributes(again)["forkpoint.turn.resumed"] is True
    used = [attributes(span)["gen_ai.usage.input_tokens"] for span in spans.of("invoke_agent")]
    assert used[1] == 10
    assert sum(used) == turn.usage.input, "each span has what was spent in it, so that a sum counts it once"


async def test_a_call_that_was_tried_again_is_one_span_that_says_why(spans: Spans) -> None:
    script = Script([Reply("Half of", fault=Fault("cut", after=1)), asks(call("look", where="x")), Reply("Fine.")])
    llm = LLM(script.register("traced-restart"), retries=Retries(attempts=2, wait=0.001))
    async with AsyncConversation(Agent(llm, tools=[look]), store="memory:") as conversation:
        called, _ = (await conversation.run("hi")).steps
    chat, second = spans.of("chat")
    assert failed_as(chat) is None
    assert attributes(chat)["forkpoint.attempts"] == called.attempts == 2
    (restart,) = chat.events
    assert restart.name == "forkpoint.restarted"
    assert (restart.attributes or {})["error.type"] == "model_connection"
    assert second.events == ()


async def test_a_cancelled_turn_ends_its_spans_and_is_no_success(spans: Spans) -> None:
    watcher = Watcher()

    @tool
    async def hang() -> str:
        """Never ends."""
        await anyio.sleep_forever()
        return ""

    agent = agent_of([asks(call("hang"))], tools=[hang])
    async with (
        AsyncConversation(agent, store="memory:", callbacks=[watcher]) as conversation,
        anyio.create_task_group() as tasks,
    ):

        async def run() -> None:
            with pytest.raises(TurnCancelled):
                await conversation.run("hi")
            assert not trace.get_current_span().get_span_context().is_valid, "what was current before is so again"

        tasks.start_soon(run)
        await watcher.until(CallStarted)
        await conversation.cancel()
    assert failed_as(spans.one("execute_tool")) == "unknown"
    assert failed_as(spans.one("invoke_agent")) == "cancelled"
    assert attributes(spans.one("invoke_agent"))["forkpoint.turn.outcome"] == "cancelled"


async def test_a_turn_whose_caller_is_cancelled_ends_its_spans(spans: Spans) -> None:
    hanging = scripted([Reply("Half", fault=Fault("hang", after=1))])
    watcher = Watcher()
    async with AsyncConversation(Agent(hanging), store="memory:", callbacks=[watcher]) as conversation:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conversation.run, "hi")
            await watcher.until(TurnStarted)
            tasks.cancel_scope.cancel()
        assert failed_as(spans.one("invoke_agent")) == "cancelled"


async def test_a_turn_that_waits_has_ended_its_span_and_its_approval_is_another(spans: Spans) -> None:
    agent = agent_of([asks(call("look", where="x")), "Fine."], tools=[look], approval="always")
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run("hi")
        waiting = spans.one("invoke_agent")
        assert failed_as(waiting) is None
        assert attributes(waiting)["forkpoint.turn.outcome"] == "awaiting_approval"
        assert spans.of("execute_tool") == []
        await conversation.approve()
    assert [attributes(span)["forkpoint.turn.outcome"] for span in spans.of("invoke_agent")][1:] == ["committed"]
    assert is_in(spans.one("execute_tool"), spans.of("invoke_agent")[1])


async def test_a_turn_is_part_of_the_span_that_is_current_where_it_is_run(spans: Spans) -> None:
    async with AsyncConversation(agent_of(["Fine.", "Fine."]), store="memory:") as conversation:
        with trace.get_tracer("mine").start_as_current_span("mine") as mine:
            await conversation.run("hi")
            assert trace.get_current_span() is mine
            async with conversation.run_stream("ho") as stream:
                async for _ in stream:
                    pass
    outer = next(span for span in spans.all if span.name == "mine")
    assert [is_in(span, outer) for span in spans.of("invoke_agent")] == [True, True]


async def test_a_turn_inside_a_tool_is_part_of_the_tools_span(spans: Spans) -> None:
    async with AsyncConversation(agent_of(["Inner."]), store="memory:") as inner:

        @tool
        async def ask_another() -> str:
            """Asks another agent."""
            return (await inner.run("hi")).text

        agent = agent_of([asks(call("ask_another")), "Ok."], tools=[ask_another])
        async with AsyncConversation(agent, store="memory:") as outer:
            await outer.run("ho")
    first, second = spans.of("invoke_agent")
    assert is_in(first, spans.one("execute_tool"))
    assert is_in(spans.one("execute_tool"), second)


def test_a_turn_that_tells_no_end_ends_with_what_was_raised(spans: Spans) -> None:
    def run(error: BaseException) -> None:
        told = traced(lambda _: None, conversation="c", tenant="t", agent=agent_of([]))
        try:
            told.tell(TurnStarted("1", "c", ()))
            raise error
        finally:
            told.end()

    for error in (OutcomeUnknown("commit", "here", "c", "?"), KeyboardInterrupt(), RuntimeError()):
        with pytest.raises(type(error)):
            run(error)
    assert [failed_as(span) for span in spans.of("invoke_agent")] == ["outcome_unknown", "cancelled", "error"]
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_tracer_that_breaks_costs_no_turn(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no tracer today")

    agent = agent_of(["Fine.", asks(call("look", where="x")), "Fine."], tools=[look])
    async with AsyncConversation(agent, store="memory:") as conversation:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", Broken())
        assert (await conversation.run("hi")).outcome == "committed"
        provider = BreaksLater()
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        assert (await conversation.run("hi")).outcome == "committed"
        assert provider.asked == 4, "each of them was tried"


class BreaksLater(TracerProvider):
    """Makes a turn's span and nothing after it."""

    def __init__(self) -> None:
        super().__init__(shutdown_on_exit=False)
        self.asked = 0

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        tracer = super().get_tracer(*args, **kwargs)
        start = tracer.start_span

        def breaks(name: str, *args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            if self.asked > 1:
                raise RuntimeError("no span today")
            return start(name, *args, **kwargs)

        tracer.start_span = breaks  # type: ignore[method-assign]
        return tracer


async def test_a_turn_that_is_not_sampled_leaves_nothing_and_neither_do_its_parts(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans.exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    sampled: list[bool] = []

    @tool
    def see() -> str:
        """Looks at the current span."""
        context = trace.get_current_span().get_span_context()
        sampled.append(context.is_valid and context.trace_flags.sampled)
        return ""

    async with AsyncConversation(agent_of([asks(call("see")), "Ok."], tools=[see]), store="memory:") as conversation:
        await conversation.run("hi")
    assert spans.all == ()
    assert sampled == [False]


def test_nobody_who_traces_nothing_loads_it() -> None:
    code = """
import asyncio, sys, json
from forkpoint import Agent, AsyncConversation
from forkpoint.testing import Reply, Script
async def main():
    async with AsyncConversation(Agent(Script([Reply("Fine.")]).register("untraced")), store="memory:") as c:
        return (await c.run("hi")).text
text = asyncio.run(main())
print(json.dumps([text, [name for name in sys.modules if name.startswith("opentelemetry")]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == ["Fine.", []]
