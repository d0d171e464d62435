"""Approval: a turn that waits is durable, somebody decides call by call, in whichever process, and once."""

import hashlib
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.conversation.support import tools as shared
from tests.conversation.support.agents import (
    Signal,
    Watcher,
    agent_of,
    asks,
    call,
    kinds,
    messages_of,
    results,
    script_of,
)
from tests.conversation.support.homes import Home
from tests.conversation.support.other_process import heard as heard_of
from tests.conversation.support.other_process import start

from forkpoint import LLM, Agent, AsyncConversation, Tool, TurnCancelled, TurnFailed, tool
from forkpoint.conversation import Turn
from forkpoint.errors import Busy, CallChanged, ForkpointError, NoSuchTurn, NotResumable, NotShown, TurnOpen
from forkpoint.events import ApprovalAsked, ApprovalDenied, ApprovalGiven, ToolCall
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import OpenTurn
from forkpoint.testing import Fault, Heard, ModelServer, Reply
from forkpoint.updates import CallStarted, CallWaits

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


class Tools:
    """A harmless and a risky tool, and what ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool
        def look(at: str) -> str:
            """Looks."""
            self.ran.append(f"look {at}")
            return f"{at} is fine"

        @tool(risky=True)
        def delete(what: str) -> str:
            """Deletes."""
            self.ran.append(f"delete {what}")
            return f"{what} is gone"

        self.both = [look, delete]


TWO = asks(call("look", "l", at="a"), call("delete", "d1", what="x"), call("delete", "d2", what="y"))


# When somebody is asked.


async def test_by_default_nobody_is_asked(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(
        home.agent(agent_of([TWO, "done"], tools=tools.both)), store=home.store
    ) as conversation:
        assert (await conversation.run("go")).outcome == "committed"
        assert sorted(tools.ran) == ["delete x", "delete y", "look a"]


@pytest.mark.parametrize(("approval", "waiting"), [("always", ["l", "d1", "d2"]), ("risky", ["d1", "d2"])])
async def test_a_policy_says_which_calls_wait(home: Home, approval: Any, waiting: list[str]) -> None:
    tools = Tools()
    agent = agent_of([TWO, "done"], tools=tools.both, approval=approval)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert turn.outcome == "awaiting_approval"
        assert [made.id for made in turn.waiting] == waiting
        assert all(made.status == "waiting" and made.reason for made in turn.waiting)
        assert await conversation.status() == "awaiting_approval"
        assert (await conversation.info()).open_turn == turn.id
        assert await conversation.events() == [], "nothing of it is history"


async def test_a_function_says_which_calls_wait_and_why(home: Home) -> None:
    tools = Tools()

    def policy(asked: ToolCall, tool: Tool) -> bool | str:
        if asked.call_id == "d1":
            return "x is precious"
        return asked.call_id == "d2"

    agent = agent_of([TWO, "done"], tools=tools.both, approval=policy)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        reasons = {made.id: made.reason for made in turn.waiting}
        assert reasons.keys() == {"d1", "d2"}
        assert reasons["d1"] == "x is precious"
        assert tools.ran == ["look a"]


async def test_a_policy_that_raises_has_not_said_yes(home: Home) -> None:
    tools = Tools()

    def policy(asked: ToolCall, tool: Tool) -> bool:
        raise KeyError("which tool?")

    agent = agent_of([asks(call("look", "l", at="a")), "done"], tools=tools.both, approval=policy)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        assert [made.id for made in turn.waiting] == ["l"]
        assert "KeyError" in (turn.waiting[0].reason or "")
        assert tools.ran == []
        assert (await conversation.approve()).outcome == "committed"


# Meanwhile.


@both
async def test_the_other_calls_of_the_same_response_run_meanwhile(home: Home) -> None:
    tools = Tools()
    watcher = Watcher()
    agent = agent_of([TWO, "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store, callbacks=[watcher]) as conversation:
        turn = await conversation.run("go")
        assert tools.ran == ["look a"]
        assert {made.id: made.status for made in turn.calls} == {"l": "done", "d1": "waiting", "d2": "waiting"}
        assert [update.call.call_id for update in watcher.of(CallStarted)] == ["l"]
        assert [update.call.call_id for update in watcher.of(CallWaits)] == ["d1", "d2"]
        assert watcher.told[-1] == turn
        turn = await conversation.approve()
        assert [result.call_id for result in results(turn.events)] == ["l", "d1", "d2"]
        assert sorted(tools.ran) == ["delete x", "delete y", "look a"], "nothing ran twice"


async def test_a_new_message_meanwhile_is_refused_unless_it_says_that_it_supersedes(home: Home) -> None:
    tools = Tools()
    agent = agent_of([TWO, "something else"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        waiting = await conversation.run("go")
        with pytest.raises(TurnOpen) as refused:
            await conversation.run("something else")
        assert refused.value.outcome == "awaiting_approval"
        assert (await conversation.turn(waiting.id)).outcome == "awaiting_approval", "refusing it disturbed nothing"
        turn = await conversation.run("something else", supersede=True)
        assert turn.outcome == "committed"
        assert (await conversation.turn(waiting.id)).outcome == "cancelled"
        assert tools.ran == ["look a"], "what was not approved was not run"
        with pytest.raises(NoSuchTurn):
            await conversation.approve()


async def test_a_retry_of_a_turn_that_waits_discards_it(home: Home) -> None:
    tools = Tools()
    agent = agent_of([TWO, "no tools this time"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        waiting = await conversation.run("go")
        turn = await conversation.retry()
        assert (turn.outcome, turn.retry_of) == ("committed", waiting.id)
        assert (await conversation.turn(waiting.id)).outcome == "cancelled"


async def test_resuming_a_turn_that_waits_goes_on_waiting(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(
        home.agent(agent_of([TWO, "done"], tools=tools.both, approval="risky")), store=home.store
    ) as conversation:
        first = await conversation.run("go")
        again = await conversation.resume()
        assert (again.id, again.outcome, again.waiting) == (first.id, "awaiting_approval", first.waiting)
        assert tools.ran == ["look a"]
        assert (await conversation.approve()).text == "done"


# Deciding.


async def test_what_is_approved_runs_and_what_is_denied_does_not_and_the_model_is_told_why(home: Home) -> None:
    tools = Tools()
    shown: list[str] = []

    def answer(heard: Heard) -> Reply:
        shown[:] = [message["content"] for message in messages_of(heard) if message["role"] == "tool"]
        return Reply("I see.") if heard.number else TWO

    agent = agent_of(answer, tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("go")
        half = await conversation.deny("d1", by="ann", reason="x is precious")
        assert half.outcome == "awaiting_approval"
        assert [made.id for made in half.waiting] == ["d2"]
        assert shown == [], "the model is asked when all its calls have a result"
        turn = await conversation.approve("d2", by="bob")
        assert turn.outcome == "committed"
        assert tools.ran == ["look a", "delete y"]
        denied, done = turn.calls[1], turn.calls[2]
        assert (denied.status, denied.reason) == ("denied", "x is precious")
        assert "x is precious" in (denied.result or "")
        assert (done.status, done.result) == ("done", "y is gone")
        assert "x is precious" in shown[1]
        bodies = [event.body for event in await conversation.events()]
        assert [body.call_id for body in bodies if isinstance(body, ApprovalAsked)] == ["d1", "d2"]
        assert ApprovalDenied("d1", "delete", "ann", "x is precious") in bodies
        assert ApprovalGiven("d2", "delete", "bob") in bodies


@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_without_names_all_that_wait_are_decided(home: Home, verb: str) -> None:
    tools = Tools()
    async with AsyncConversation(
        home.agent(agent_of([TWO, "done"], tools=tools.both, approval="always")), store=home.store
    ) as conversation:
        await conversation.run("go")
        turn = await getattr(conversation, verb)(by="ann")
        assert {made.status for made in turn.calls} == {"done" if verb == "approve" else "denied"}
        assert len(tools.ran) == (3 if verb == "approve" else 0)
        assert kinds(turn.events).count("approval_given" if verb == "approve" else "approval_denied") == 3


async def test_each_response_of_a_turn_is_asked_about(home: Home) -> None:
    tools = Tools()
    first, second = asks(call("delete", "d1", what="x")), asks(call("delete", "d1", what="y"))
    async with AsyncConversation(
        home.agent(agent_of([first, second, "done"], tools=tools.both, approval="risky")), store=home.store
    ) as conversation:
        await conversation.run("go")
        turn = await conversation.approve()
        assert turn.outcome == "awaiting_approval", "one approval is for one call, whatever id the model gives the next"
        assert tools.ran == ["delete x"]
        assert (await conversation.deny()).outcome == "committed"
        assert tools.ran == ["delete x"]


async def test_a_decision_on_a_call_that_does_not_wait_changes_nothing(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(
        home.agent(agent_of([TWO, "done"], tools=tools.both, approval="risky")), store=home.store
    ) as conversation:
        await conversation.run("go")
        for decide in (conversation.approve, conversation.deny):
            with pytest.raises(NoSuchTurn, match="d1, d2"):
                await decide("l")
            with pytest.raises(NoSuchTurn):
                await decide("d1", "never heard of")
        assert await conversation.status() == "awaiting_approval"
        assert tools.ran == ["look a"]
        assert (await conversation.approve()).outcome == "committed"
        with pytest.raises(NoSuchTurn):
            await conversation.approve()


# An approval is of content that was shown.


async def test_a_call_has_a_digest_of_all_that_it_asks_for(home: Home) -> None:
    tools = Tools()
    async with AsyncConversation(
        home.agent(agent_of([TWO, "done"], tools=tools.both, approval="risky")), store=home.store
    ) as conversation:
        d1, d2 = (await conversation.run("go")).waiting
        framed = b'1:1,2:d1,6:delete,13:{"what": "x"},'
        assert d1.digest == f"sha256:{hashlib.sha256(framed).hexdigest()}"
        others = [replace(d1, response=2), replace(d1, id="d3"), replace(d1, tool="look"), replace(d1, arguments="{}")]
        assert len({call.digest for call in (d1, d2, *others)}) == 6
        assert replace(d1, status="done", reason=None, result="x").digest == d1.digest, "how it stands is not content"


async def test_what_the_model_says_beside_a_call_that_waits_is_the_text_of_the_turn(home: Home) -> None:
    tools = Tools()
    asked = asks(call("delete", "d", what="x"), text="I need the room of x.")
    agent = agent_of([asked, "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        assert (await conversation.run("go")).text == "I need the room of x."
        assert (await conversation.approve()).text == "done"


async def test_an_object_that_has_shown_nothing_approves_nothing_until_it_has(home: Home) -> None:
    tools = Tools()
    agent = agent_of([TWO, "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        assert await conversation.open_turn() is None
        turn = await conversation.run("go")
    async with await AsyncConversation.open(turn.conversation, agent=home.at_hand(agent), store=home.store) as again:
        for named in ((), ("d1",)):
            with pytest.raises(NotShown, match=r"d1.*open_turn\(\)"):
                await again.approve(*named)
        assert tools.ran == ["look a"]
        assert await again.open_turn() == turn
        assert (await again.approve()).outcome == "committed"
        assert await again.open_turn() is None
        assert sorted(tools.ran) == ["delete x", "delete y", "look a"]


@pytest.mark.parametrize("way", ["turn", "turns", "open_turn", "resume", "a call in hand"])
async def test_whatever_gives_the_turn_has_shown_its_calls(home: Home, way: str) -> None:
    tools = Tools()
    agent = agent_of([TWO, "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
    async with await AsyncConversation.open(turn.conversation, agent=home.at_hand(agent), store=home.store) as again:
        calls = turn.waiting if way == "a call in hand" else ()
        shows: dict[str, Any] = {"turn": lambda: again.turn(turn.id), "turns": again.turns, "resume": again.resume}
        shows |= {"open_turn": again.open_turn, "a call in hand": again.info}
        await shows[way]()
        assert (await again.approve(*calls)).outcome == "committed"
        assert sorted(tools.ran) == ["delete x", "delete y", "look a"]


async def test_a_stream_and_a_callback_show_what_waits(home: Home) -> None:
    tools = Tools()
    agent = agent_of([TWO, asks(call("delete", "d3", what="z")), "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        async with conversation.run_stream("go") as stream:
            async for _ in stream:
                pass
        assert (await conversation.approve()).outcome == "awaiting_approval"
        assert (await conversation.approve()).outcome == "committed"


async def test_a_call_that_came_to_wait_after_what_was_shown_is_not_approved_with_it(home: Home) -> None:
    tools = Tools()
    first, second = asks(call("delete", "d", what="x")), asks(call("delete", "d", what="y"))
    agent = agent_of([first, second, "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
        async with await AsyncConversation.open(
            turn.conversation, agent=home.at_hand(agent), store=home.store
        ) as other:
            await other.open_turn()
            assert (await other.approve()).outcome == "awaiting_approval"
        with pytest.raises(NotShown):
            await conversation.approve()
        with pytest.raises(CallChanged):
            await conversation.approve("d")
        for decide in (conversation.approve, conversation.deny):
            with pytest.raises(CallChanged, match="'d'"):
                await decide(turn.waiting[0])
        assert await conversation.status() == "awaiting_approval"
        assert tools.ran == ["delete x"]
        await conversation.open_turn()
        assert (await conversation.approve()).outcome == "committed"


async def test_an_approval_of_the_same_content_counts_in_a_later_turn(home: Home) -> None:
    tools = Tools()
    asked = asks(call("delete", "d", what="x"))
    agent = agent_of([asked, asked, "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        (seen,) = (await conversation.run("go")).waiting
        await conversation.discard()
        await conversation.run("go again")
        assert (await conversation.approve(seen)).outcome == "committed"
        assert tools.ran == ["delete x"]


async def test_a_call_that_was_made_up_is_not_approved(home: Home) -> None:
    tools = Tools()
    agent = agent_of([asks(call("delete", "d", what="x")), "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        (waits,) = (await conversation.run("go")).waiting
        with pytest.raises(CallChanged):
            await conversation.approve(replace(waits, arguments='{"what": "y"}'))
        assert tools.ran == []


async def test_a_denial_needs_no_look(home: Home) -> None:
    tools = Tools()
    agent = agent_of([TWO, "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run("go")
    async with await AsyncConversation.open(turn.conversation, agent=home.at_hand(agent), store=home.store) as again:
        assert (await again.deny("d1")).outcome == "awaiting_approval"
        assert (await again.deny()).outcome == "committed"
        assert tools.ran == ["look a"]


async def test_a_model_that_fails_after_the_approval_does_not_undo_it(home: Home) -> None:
    tools = Tools()
    overloaded = Reply("x", fault=Fault("overloaded"))
    agent = agent_of([asks(call("delete", "d", what="x")), overloaded, "done"], tools=tools.both, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("go")
        with pytest.raises(TurnFailed):
            await conversation.approve(by="ann")
        turn = await conversation.resume()
        assert turn.outcome == "committed"
        assert tools.ran == ["delete x"]
        assert "approval_given" in kinds(turn.events)


async def test_an_approved_call_that_was_started_and_cut_off_is_not_run_again(home: Home) -> None:
    started, ran = Signal(), []

    @tool(risky=True)
    async def pay() -> str:
        """Pays."""
        ran.append("pay")
        started.set()
        await anyio.sleep_forever()
        return "never"

    async with AsyncConversation(
        home.agent(agent_of([asks(call("pay", "p")), "done"], tools=[pay], approval="risky")), store=home.store
    ) as conversation:
        await conversation.run("go")

        async def approve() -> None:
            with pytest.raises(TurnCancelled):
                await conversation.approve()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(approve)
            await started.wait()
            await conversation.cancel()
        turn = await conversation.resume()
        assert [(made.status, made.id) for made in turn.calls] == [("unknown", "p")]
        assert ran == ["pay"]


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
@pytest.mark.parametrize("reason", [None, "x is precious"])
async def test_on_every_wire_a_model_reads_that_a_denied_call_was_not_run(
    home: Home, wire: Any, reason: str | None
) -> None:
    tools = Tools()
    with ModelServer(script_of([asks(call("delete", "d", what="x")), "I see."])) as server:
        settings = {"base_url": server.root if wire == "messages" else server.url, "api": wire}
        llm = LLM("anthropic/test" if wire == "messages" else "openai/test", **settings)
        async with AsyncConversation(
            home.agent(Agent(llm, tools=tools.both, approval="risky")), store=home.store
        ) as conversation:
            await conversation.run("go")
            await conversation.deny(reason=reason)
            sent = server.last.body.decode()
            assert "not run" in sent
            assert (reason or "") in sent


# Races.


async def test_of_two_who_decide_at_once_one_wins_and_nothing_runs_twice(home: Home) -> None:
    tools = Tools()
    agent = agent_of([asks(call("delete", "d", what="x")), "done"], tools=tools.both, approval="risky")
    heard: list[Any] = []
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("go")
        other = await AsyncConversation.open(conversation.id, agent=home.agent(agent), store=home.store)

        async def decide(verb: Any) -> None:
            try:
                heard.append(await verb())
            except ForkpointError as error:
                heard.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decide, conversation.approve)
            tasks.start_soon(decide, other.deny)
        await other.close()
        (turn,) = (one for one in heard if isinstance(one, Turn))
        (refused,) = (one for one in heard if not isinstance(one, Turn))
        assert isinstance(refused, Busy | NoSuchTurn | NotResumable)
        assert turn.outcome == "committed"
        assert tools.ran == (["delete x"] if turn.calls[0].status == "done" else [])
        assert kinds(turn.events).count("approval_given") + kinds(turn.events).count("approval_denied") == 1


class SlowStore(SqliteStore):
    """A store in which one resume, when it is told to, waits before it takes its turn."""

    gate: anyio.Event | None = None
    reached: anyio.Event

    async def resume(self, turn: str) -> OpenTurn:
        gate, self.gate = self.gate, None
        if gate is not None:
            self.reached.set()
            await gate.wait()
        return await super().resume(turn)


async def test_a_decision_that_another_has_overtaken_does_not_end_the_turn_that_still_waits(tmp_path: Path) -> None:
    tools = Tools()
    agent = agent_of([TWO, "done"], tools=tools.both, approval="risky")
    store = await SlowStore.open(tmp_path / "a.db")
    assert isinstance(store, SlowStore)
    async with store, AsyncConversation(agent, store=store) as conversation:
        await conversation.run("go")
        gate, store.reached = anyio.Event(), anyio.Event()
        store.gate = gate

        async def late() -> None:
            turn = await conversation.approve("d1")
            assert {made.id: made.status for made in turn.calls} == {"l": "done", "d1": "denied", "d2": "waiting"}

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late)
            await store.reached.wait()
            half = await conversation.deny("d1")
            assert [made.id for made in half.waiting] == ["d2"]
            gate.set()
        assert await conversation.status() == "awaiting_approval"
        assert (await conversation.approve()).outcome == "committed"
        assert tools.ran == ["look a", "delete y"]


# From another process.


ERASE = shared.steps([("write", {"line": "first"}), ("erase", {})])


@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_another_process_decides_when_this_one_is_gone(tmp_path: Path, verb: str) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    async with AsyncConversation(
        shared.agent(approval="risky"), conversation_id="waits", store=store, workspace=tmp_path
    ) as conversation:
        turn = await conversation.run(ERASE)
        assert turn.outcome == "awaiting_approval"
    told = heard_of(start(store, "waits", verb, by="the other process"))
    assert (told["turn"], told["outcome"]) == (turn.id, "committed")
    assert shared.logged(tmp_path) == (["first", "erased"] if verb == "approve" else ["first"])
    async with await AsyncConversation.open("waits", store=store) as conversation:
        bodies = [event.body for event in await conversation.events()]
        given = [body.by for body in bodies if isinstance(body, ApprovalGiven | ApprovalDenied)]
        assert given == ["the other process"]
        assert (await conversation.verify()).ok


async def test_of_two_processes_that_approve_at_once_one_wins_and_the_tool_runs_once(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    async with AsyncConversation(
        shared.agent(approval="risky"), conversation_id="waits", store=store, workspace=tmp_path
    ) as conversation:
        await conversation.run(ERASE)
    processes = [start(store, "waits", "approve", by=str(n), ready=True) for n in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [heard_of(process) for process in processes]
    assert sorted("error" in one for one in told) == [False, True], told
    assert shared.logged(tmp_path) == ["first", "erased"]
