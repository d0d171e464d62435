"""Answers without a conversation: nothing of them is kept but what they cost, and that counts for the tenant."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.conversation.support.agents import PATIENCE, Watcher, agent_of, asks, call, kinds, messages_of, scripted

from forkpoint import Agent, Limits, ToolContext, TurnCancelled, tool
from forkpoint.backend.messages import Given
from forkpoint.backend.options import How
from forkpoint.conversation import Turn, TurnStarted
from forkpoint.engine.engine import Engine
from forkpoint.engine.resources import EngineOptions
from forkpoint.errors import (
    ConversationClosed,
    LimitReached,
    ModelUnavailable,
    NotFound,
    OutcomeUnknown,
    StoreUnavailable,
)
from forkpoint.events import AssistantMessage, SystemMessage, Text, ToolCall, ToolResult, Usage, UserMessage
from forkpoint.llm import Price, TextPiece, own_identity
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.server.http.metrics import Metrics
from forkpoint.store import open_store
from forkpoint.store.protocol import Store
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.updates import CallEnded

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])

IDENTITY = own_identity("beside conversations")
BROWSE = ToolSchema("browse", "Opens a page.")
PAID = Usage(calls=1, input=20, output=2)
HANGS = Reply("x", piece=1, usage=PAID, fault=Fault("hang", after=1))


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with await open_store("memory:") as opened:
        yield opened


@pytest.fixture
async def backend(store: Store) -> AsyncIterator[Engine]:
    backend = Engine(store, owns_store=False)
    yield backend
    await backend.close()


def said(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def paid(text: str, **fields: Any) -> Reply:
    return Reply(text, usage=PAID, **fields)


async def answered(backend: Engine, agent: Agent, *given: Given, tell: Any = lambda _: None, **options: Any) -> Turn:
    return await backend.turns.once(agent, given or (said("hi"),), identity=IDENTITY, tell=tell, **options)


async def is_empty(store: Store) -> bool:
    """Whether nothing of a conversation is in a store."""
    found = await store.verify(None)
    return (await store.conversations()).items == () and (found.conversations, found.events) == (0, 0)


@both
async def test_it_is_answered_and_nothing_is_kept_but_what_it_cost(backend: Engine, store: Store) -> None:
    turn = await answered(backend, agent_of([paid("Hello.")]))
    assert (turn.outcome, turn.text, turn.usage) == ("committed", "Hello.", PAID)
    assert turn.input == (said("hi"),)
    assert turn.ended is not None
    assert turn.ended >= turn.started > 0
    assert kinds(turn.events) == ["model_called", "assistant_message"]
    assert await is_empty(store)
    assert await backend.usage() == (PAID, PAID)
    with pytest.raises(NotFound):
        await backend.turns.cancel(turn.conversation)


async def test_what_was_said_before_goes_to_the_model_as_it_was_given(backend: Engine) -> None:
    shown: list[Any] = []

    def answer(heard: Heard) -> Reply:
        shown.extend((message["role"], message["content"]) for message in messages_of(heard))
        return Reply("Fine.")

    await answered(
        backend,
        agent_of(answer, client_tools=[BROWSE]),
        SystemMessage((Text("Be brief."),)),
        said("Read it."),
        AssistantMessage((Text("One moment."),)),
        ToolCall("a", "browse", "{}", client=True),
        ToolResult("a", "browse", (Text("a page"),)),
        said("Well?"),
    )
    assert [role for role, _ in shown] == ["system", "user", "assistant", "tool", "user"]
    assert shown[3] == ("tool", "a page")


async def test_tools_run_and_their_state_is_that_of_the_answer_alone(backend: Engine, tmp_path: Path) -> None:
    seen: list[Any] = []

    @tool
    def count(ctx: ToolContext) -> str:
        """Counts."""
        seen.append((ctx.state.get("count", 0), ctx.workspace))
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return "counted"

    agent = agent_of([asks(call("count")), asks(call("count")), "Two."] * 2, tools=[count])
    assert (await answered(backend, agent, workspace=tmp_path)).text == "Two."
    assert seen == [(0, tmp_path), (1, tmp_path)]
    await answered(backend, agent)
    assert seen[2:] == [(0, None), (1, None)]


async def test_calls_of_the_client_s_tools_are_handed_over(backend: Engine) -> None:
    turn = await answered(backend, agent_of([asks(call("browse", "b"))], client_tools=[BROWSE]))
    assert turn.outcome == "committed"
    assert [one.id for one in turn.handed] == ["b"]


async def test_nobody_can_be_asked_so_a_call_that_needs_an_approval_is_denied(backend: Engine) -> None:
    ran: list[str] = []

    @tool(risky=True)
    def deploy() -> None:
        """Deploys."""
        ran.append("deploy")

    watcher = Watcher()
    agent = agent_of([asks(call("deploy", "d")), "Then not."], tools=[deploy], approval="risky")
    turn = await answered(backend, agent, tell=watcher, how=How(attended=True))
    assert (turn.text, ran) == ("Then not.", [])
    assert [one.status for one in turn.calls] == ["denied"]
    assert [update.result.status for update in watcher.of(CallEnded)] == ["denied"]


async def test_options_hold_for_it(backend: Engine) -> None:
    bodies: list[Any] = []

    def answer(heard: Heard) -> Reply:
        bodies.append(heard.body)
        return Reply("Fine.")

    await answered(backend, agent_of(answer), how=How(options=Options(temperature=0.25, max_tokens=7)))
    assert (bodies[0]["temperature"], bodies[0]["max_tokens"]) == (0.25, 7)


async def test_limits_end_it(backend: Engine, store: Store) -> None:
    agent = agent_of([paid("x", calls=(call("look", at="it"),))] * 2)
    with pytest.raises(LimitReached) as reached:
        await answered(backend, agent, how=How(limits=Limits(steps=1)))
    assert reached.value.what == "steps"
    with pytest.raises(LimitReached) as late:
        await answered(backend, agent_of([HANGS]), how=How(limits=Limits(seconds=0.01)))
    assert late.value.what == "seconds"
    assert await store.spent(None) == PAID + PAID


async def test_the_patience_of_the_place_ends_it_too_unless_the_agent_has_less(store: Store) -> None:
    for patience, own, said in ((0.01, 60.0, "0.01"), (60.0, 0.02, "0.02"), (0.03, None, "0.03")):
        backend = Engine(store, options=EngineOptions(patience=patience), owns_store=False)
        with pytest.raises(LimitReached) as late:
            await answered(backend, agent_of([HANGS], limits=Limits(seconds=own)))
        assert said in str(late.value)
        await backend.close()


async def test_a_failure_is_raised_as_it_is_and_its_cost_counts(backend: Engine, store: Store) -> None:
    watcher = Watcher()
    with pytest.raises(ModelUnavailable):
        await answered(backend, agent_of([paid("x", fault=Fault("overloaded"))]), tell=watcher)
    (turn,) = watcher.of(Turn)
    assert (turn.outcome, turn.error.code, turn.usage) == ("failed", ModelUnavailable.code, PAID)
    assert await backend.usage() == (PAID, PAID)
    assert await is_empty(store)


@pytest.mark.parametrize("kind", [TurnStarted, TextPiece, Turn])
async def test_one_that_cannot_be_told_is_not_left_running_and_what_is_known_of_its_cost_counts(
    backend: Engine, kind: type
) -> None:
    def tell(update: object) -> None:
        if isinstance(update, kind):
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        await answered(backend, agent_of([paid("x")]), tell=tell)
    with anyio.fail_after(PATIENCE):
        await backend.stop()
    assert await backend.usage() == ((PAID, PAID) if kind is Turn else (Usage(), Usage()))


@both
async def test_it_can_be_cancelled_by_its_name_and_its_cost_counts(backend: Engine) -> None:
    watcher = Watcher()
    heard: list[BaseException] = []

    async def ask() -> None:
        with pytest.raises(TurnCancelled) as cancelled:
            await answered(backend, agent_of([HANGS]), tell=watcher)
        heard.append(cancelled.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await watcher.until(TextPiece)
        (started,) = watcher.of(TurnStarted)
        turn = await backend.turns.cancel(started.conversation)
    assert (turn.outcome, turn.usage) == ("cancelled", PAID)
    assert watcher.of(Turn) == [turn]
    assert len(heard) == 1
    assert await backend.usage() == (PAID, PAID)


@both
async def test_it_can_be_cancelled_from_around_it_and_its_cost_counts(backend: Engine) -> None:
    watcher = Watcher()

    async def ask() -> None:
        await answered(backend, agent_of([HANGS]), tell=watcher)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await watcher.until(TextPiece)
        tasks.cancel_scope.cancel()
    assert [turn.outcome for turn in watcher.of(Turn)] == ["cancelled"]
    assert await backend.usage() == (PAID, PAID)


async def test_closing_stops_it_and_nothing_begins_afterwards(store: Store) -> None:
    backend, watcher = Engine(store, owns_store=False), Watcher()

    async def ask() -> None:
        with pytest.raises(TurnCancelled):
            await answered(backend, agent_of([HANGS]), tell=watcher)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await watcher.until(TextPiece)
        await backend.close()
    assert await store.spent(None) == PAID
    with pytest.raises(ConversationClosed):
        await answered(backend, agent_of(["x"]))


async def test_many_at_once_are_each_counted_once(backend: Engine) -> None:
    agent = Agent(scripted([paid("x")] * 20, price=Price(input=1, output=0)))
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(answered, backend, agent)
    total, beside = await backend.usage()
    assert total == beside
    assert (total.calls, total.input, total.nanodollars) == (20, 400, 20 * 20_000)


class Failing:
    """A store whose disk fails some of the charges: those before they happen, or once they have."""

    def __init__(self, store: Store, faults: Sequence[BaseException], *, late: bool = False) -> None:
        self._store = store
        self._faults = list(faults)
        self._late = late

    async def charge(self, *arguments: Any) -> None:
        if not self._faults or self._late:
            await self._store.charge(*arguments)
        if self._faults:
            raise self._faults.pop(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("late", [False, True], ids=["not on disk", "on disk"])
async def test_a_charge_that_the_disk_did_not_confirm_is_counted_with_the_next_and_once(
    store: Store, late: bool
) -> None:
    fault = OutcomeUnknown("", "charge", "x", "disk I/O error") if late else StoreUnavailable.disk_full("", "no space")
    backend = Engine(Failing(store, [fault], late=late), owns_store=False)
    agent = agent_of([paid("one"), paid("two")])
    assert (await answered(backend, agent)).text == "one", "it was answered, whatever the disk says"
    assert await store.spent(None) == (PAID if late else Usage())
    assert (await answered(backend, agent)).text == "two"
    assert await store.spent(None) == PAID + PAID
    await backend.close()


async def test_a_charge_that_the_disk_did_not_take_is_tried_again_at_the_end(store: Store) -> None:
    backend = Engine(Failing(store, [StoreUnavailable.disk_full("", "no space")]), owns_store=False)
    await answered(backend, agent_of([paid("one")]))
    await backend.close()
    assert await store.spent(None) == PAID


async def test_it_counts_for_its_tenant_alone(store: Store) -> None:
    ann, bob = store.within("ann"), store.within("bob")
    for tenant in (ann, bob, bob):
        backend = Engine(tenant, owns_store=False)
        await answered(backend, agent_of([paid("x")]))
        await backend.close()
    assert (await ann.usage(), await bob.usage(), await store.usage()) == (PAID, PAID + PAID, Usage())


async def test_it_is_a_span_with_its_model_calls(backend: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    agent = agent_of([paid("x"), paid("x", fault=Fault("overloaded"))], name="scout")
    await answered(backend, agent)
    with pytest.raises(ModelUnavailable):
        await answered(backend, agent)
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [f"chat {agent.llm.name}", "invoke_agent scout"] * 2
    assert [(span.attributes or {}).get("error.type") for span in spans] == [
        None,
        None,
        ModelUnavailable.code,
        ModelUnavailable.code,
    ]
    assert trace.get_current_span() is trace.INVALID_SPAN, "what comes after it is no part of it"
    provider.shutdown()


async def test_it_is_counted_as_a_turn_is(backend: Engine) -> None:
    metrics = Metrics()
    agent = agent_of([paid("x"), paid("x", fault=Fault("overloaded"))])
    with metrics.turn(lambda _: None) as tell:
        await answered(backend, agent, tell=tell)
    with metrics.turn(lambda _: None) as tell, pytest.raises(ModelUnavailable):
        await answered(backend, agent, tell=tell)
    told = metrics.render(None)[0].decode()
    assert 'forkpoint_turns_total{outcome="committed"} 1.0' in told
    assert 'forkpoint_turns_total{outcome="failed"} 1.0' in told
    assert "forkpoint_turns_running 0.0" in told
