"""What the server counts, as Prometheus reads it."""

import anyio
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from tests.conversation.support.agents import PATIENCE, Watcher, agent_of, asks, call, scripted

from forkpoint import Agent, AsyncConversation, TurnCancelled, TurnFailed, __version__, tool
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.results import Turn
from forkpoint.events import ModelCalled, ToolCall, ToolResult, Usage
from forkpoint.llm import Price
from forkpoint.server.http.metrics import VALUES, Metrics, _Watch
from forkpoint.testing import Fault, Reply
from forkpoint.updates import Answered, CallEnded, CallStarted, TurnStarted

pytestmark = pytest.mark.anyio

OVERLOADED = Reply(fault=Fault("overloaded"))


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    body, _ = metrics.render()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[f"forkpoint_{name}", frozenset(labels.items())]


def ignore(update: Update) -> None:
    pass


@tool
def look() -> str:
    """Looks."""
    return "x"


async def test_a_turn_is_counted_with_its_calls_tokens_and_dollars() -> None:
    metrics = Metrics()
    usage = Usage(calls=1, input=1000, cached=600, written=300, output=70, reasoning=20)
    llm = scripted(
        [Reply("", calls=(call("look"),), usage=usage), Reply("Fine.", usage=usage)],
        price=Price(input=1.0, output=10.0),
    )
    with metrics.turn(ignore) as counted:
        async with AsyncConversation(Agent(llm, tools=[look]), store="memory:", callbacks=[counted]) as conversation:
            turn = await conversation.run("hi")
    assert value(metrics, "turns_total", outcome="committed") == 1
    assert value(metrics, "turn_seconds_count") == 1
    assert value(metrics, "model_calls_total", outcome="tool_calls") == 1
    assert value(metrics, "model_calls_total", outcome="stop") == 1
    assert value(metrics, "model_call_seconds_count") == 2
    assert value(metrics, "model_first_token_seconds_count") == 2
    assert value(metrics, "tool_calls_total", status="done") == 1
    tokens = {kind: value(metrics, "tokens_total", kind=kind) for kind in ("cached", "written", "fresh", "output")}
    assert tokens == {"cached": 1200, "written": 600, "fresh": 200, "output": 140}
    assert sum(tokens.values()) == turn.usage.input + turn.usage.output, "no token is in two kinds"
    assert value(metrics, "reasoning_tokens_total") == 40
    assert turn.cost
    assert value(metrics, "dollars_total") == pytest.approx(turn.cost)
    assert value(metrics, "unpriced_calls_total") == 0
    assert value(metrics, "turns_running") == 0


async def test_a_failed_turn_and_its_resumption_count_what_was_spent_once() -> None:
    metrics = Metrics()
    tell: list[Callback] = []
    agent = agent_of([asks(call("look")), OVERLOADED, "Fine."], tools=[look])
    async with AsyncConversation(agent, store="memory:", callbacks=[lambda update: tell[-1](update)]) as conversation:
        with metrics.turn(ignore) as counted:
            tell.append(counted)
            with pytest.raises(TurnFailed):
                await conversation.run("hi")
        with metrics.turn(ignore) as counted:
            tell.append(counted)
            turn = await conversation.resume()
    assert value(metrics, "turns_total", outcome="failed") == 1
    assert value(metrics, "turns_total", outcome="committed") == 1
    assert value(metrics, "model_calls_total", outcome="model_overloaded") == 1
    spent = sum(value(metrics, "tokens_total", kind=kind) for kind in ("cached", "written", "fresh"))
    assert spent == turn.usage.input
    assert value(metrics, "unpriced_calls_total") == turn.usage.unpriced
    assert value(metrics, "tool_calls_total", status="done") == 1


async def test_a_turn_that_runs_is_shown_as_running_until_it_is_cancelled() -> None:
    metrics = Metrics()
    watcher = Watcher()
    hanging = scripted([Reply("Half", fault=Fault("hang", after=1))])
    with metrics.turn(watcher) as counted:
        async with (
            AsyncConversation(Agent(hanging), store="memory:", callbacks=[counted]) as conversation,
            anyio.create_task_group() as tasks,
        ):

            async def run() -> None:
                with pytest.raises(TurnCancelled):
                    await conversation.run("hi")

            tasks.start_soon(run)
            await watcher.until(TurnStarted)
            assert value(metrics, "turns_running") == 1
            with anyio.fail_after(PATIENCE):
                await conversation.cancel()
    assert value(metrics, "turns_running") == 0
    assert value(metrics, "turns_total", outcome="cancelled") == 1
    assert value(metrics, "model_calls_total", outcome="cancelled") == 1


def test_a_turn_that_tells_no_end_is_unknown_and_one_that_never_began_is_not_counted() -> None:
    metrics = Metrics()
    with metrics.turn(ignore) as counted:
        counted(TurnStarted("1", "c", ()))
    with metrics.turn(ignore):
        pass
    assert value(metrics, "turns_total", outcome="unknown") == 1
    assert value(metrics, "turns_total", outcome="committed") == 0
    assert value(metrics, "turns_running") == 0


def test_what_models_and_tools_took_is_no_part_of_a_turns_own_time_though_tools_overlap() -> None:
    metrics = Metrics()
    now = 0.0
    watch = _Watch(metrics, ignore, lambda: now)

    def at(moment: float, update: Update) -> None:
        nonlocal now
        now = moment
        watch(update)

    def called(duration: float) -> Answered:
        return Answered(ModelCalled("scripted/x", "scripted/scripted", Usage(), "stop", duration=duration))

    at(100.0, TurnStarted("1", "c", ()))
    at(105.0, called(4.0))  # 101 to 105
    at(106.0, CallStarted(ToolCall("a", "t", "{}")))
    at(107.0, CallStarted(ToolCall("b", "t", "{}")))
    at(110.0, CallEnded(ToolResult("b", "t", duration=2.0)))  # 107 to 109, inside the other
    at(112.0, CallEnded(ToolResult("a", "t", duration=5.0)))  # 106 to 111: a second to write it
    at(116.0, called(3.0))  # 113 to 116
    at(117.0, Turn("1", "c", "committed", (), (), Usage()))
    assert value(metrics, "turn_seconds_sum") == pytest.approx(17.0)
    assert value(metrics, "turn_own_seconds_sum") == pytest.approx(17.0 - 4.0 - 5.0 - 3.0)


def test_a_tool_that_never_ended_took_the_rest_of_the_time() -> None:
    metrics = Metrics()
    moments = iter([0.0, 1.0, 9.0])
    watch = _Watch(metrics, ignore, lambda: next(moments))
    watch(TurnStarted("1", "c", ()))
    watch(CallStarted(ToolCall("a", "t", "{}")))
    watch(Turn("1", "c", "cancelled", (), (), Usage()))
    assert value(metrics, "turn_own_seconds_sum") == pytest.approx(1.0)


def test_what_cannot_be_counted_is_told_on_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    watcher = Watcher()
    odd = Answered(ModelCalled("m", "p", Usage(), "stop", duration="long"))  # type: ignore[arg-type]
    with Metrics().turn(watcher) as counted:
        counted(odd)
    assert watcher.told == [odd]
    assert len(caplog.records) == 1


def test_a_provider_that_counts_strangely_breaks_nothing() -> None:
    metrics = Metrics()
    metrics.used(Usage(calls=1, input=10, cached=50, output=3))
    assert value(metrics, "tokens_total", kind="fresh") == 0
    assert value(metrics, "tokens_total", kind="cached") == 50


def test_a_request_is_counted_by_method_route_and_status() -> None:
    metrics = Metrics()
    metrics.request("GET", "/api/conversations/{id}", 200, 0.02)
    metrics.request("GET", "/api/conversations/{id}", 404, 0.02)
    metrics.refused("streams")
    labels = {"method": "GET", "route": "/api/conversations/{id}"}
    assert value(metrics, "requests_total", **labels, status="200") == 1
    assert value(metrics, "requests_total", **labels, status="404") == 1
    assert value(metrics, "request_seconds_count", **labels) == 2
    assert value(metrics, "refused_requests_total", reason="streams") == 1


def test_labels_stay_bounded_whatever_is_sent() -> None:
    metrics = Metrics()
    for number in range(3 * VALUES):
        metrics.request(f"M{number}", None, 900 + number, 0.0)
        metrics.request("GET", f"/{number}", 200, 0.0)
        metrics.refused(f"r{number}")
        metrics.store(f"o{number}", 0.0)
    found = samples(metrics)
    for label in ("method", "status", "route", "reason", "operation"):
        values = {text for _, labels in found for name, text in labels if name == label}
        assert len(values) <= VALUES + 1, f"{label} has {len(values)} values"
        assert "other" in values
    assert value(metrics, "requests_total", method="other", route="other", status="other") == 3 * VALUES


def test_no_label_names_a_conversation_a_tenant_a_model_or_a_tool() -> None:
    metrics = Metrics()
    with metrics.turn(ignore) as counted:
        counted(TurnStarted("turn-1", "conversation-1", ()))
        counted(Answered(ModelCalled("scripted/model-1", "scripted/scripted", Usage(), "stop")))
        counted(CallStarted(ToolCall("call-1", "tool-1", "{}")))
        counted(CallEnded(ToolResult("call-1", "tool-1")))
    assert b"-1" not in metrics.render()[0].replace(b"e-1", b"")


def test_streams_and_gaps_are_counted() -> None:
    metrics = Metrics()
    with metrics.stream(), metrics.stream():
        assert value(metrics, "streams_open") == 2
    metrics.gap()
    assert value(metrics, "streams_open") == 0
    assert value(metrics, "stream_gaps_total") == 1


def test_two_servers_in_one_process_count_apart_and_say_what_they_are() -> None:
    one, other = Metrics(), Metrics()
    one.gap()
    assert value(other, "stream_gaps_total") == 0
    (build,) = [dict(labels) for name, labels in samples(one) if name == "forkpoint_build_info"]
    assert build["version"] == __version__
    assert any(name == "process_resident_memory_bytes" for name, _ in samples(one))


def test_a_rate_can_be_seen_from_the_first_turn_on() -> None:
    assert value(Metrics(), "turns_total", outcome="failed") == 0


def test_it_is_rendered_as_the_reader_asks() -> None:
    metrics = Metrics()
    metrics.gap()
    body, kind = metrics.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert any(family.name == "forkpoint_stream_gaps" for family in families)
    _, plain = metrics.render(None)
    assert plain.startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/plain; version=abc",
        "application/openmetrics-text; version=x.y",
        ";;;,=,",
        "text/plain;version=.",
    ],
)
def test_an_accept_header_that_makes_no_sense_gets_the_plain_form(accept: str) -> None:
    body, kind = Metrics().render(accept)
    assert kind.startswith("text/plain")
    assert b"forkpoint_turns_running 0.0" in body
