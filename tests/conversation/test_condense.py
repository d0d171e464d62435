"""Condensing at once, and what holds whenever a path is condensed: ids, forks, exchanges, and the provider's cache."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from tests.agent import importable
from tests.conversation.support.agents import Signal, agent_of, asks, call, messages_of, scripted
from tests.conversation.support.homes import Home

from forkpoint import LLM, Agent, AsyncConversation, Condenser, Conversation, Window, tool
from forkpoint.agent.condense.cut import Cut
from forkpoint.agent.stored.document import bind, document_of, portable_document
from forkpoint.errors import BadAgent, BadArgument, CannotResume, ModelError, Stale, TurnOpen
from forkpoint.events import AnyBody, Condensation, Event, SkillActivated, Usage
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio


@tool(risky=True)
def look(at: int) -> str:
    """Looks."""
    return f"saw {at}, " + "and more " * 20


class Working:
    """A model that uses a tool in every turn, and all that it was sent."""

    def __init__(self) -> None:
        self.sent: list[list[dict[str, Any]]] = []
        self.llm = scripted(self._answer)

    def _answer(self, heard: Heard) -> Reply:
        messages = messages_of(heard)
        self.sent.append(messages)
        size = sum(len(json.dumps(message)) for message in messages) // 4
        if messages[-1]["role"] == "tool":
            return Reply("done", usage=Usage(1, size, 0, 0, 5))
        used = asks(call("look", f"c{len(self.sent)}", at=len(self.sent)), call("look", f"d{len(self.sent)}", at=0))
        return Reply(used.text, calls=used.calls, usage=Usage(1, size, 0, 0, 20))


def shared(one: Sequence[object], other: Sequence[object]) -> int:
    """With how many messages two prompts begin alike."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_exchanges(messages: Sequence[dict[str, Any]]) -> None:
    """Every result has its call in the response right before, and every call its result."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "a result without its call"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, "a call without its result"
        waiting = [one["id"] for one in message.get("tool_calls") or ()]
    assert not waiting


async def notes_of(conversation: AsyncConversation) -> list[Condensation]:
    return [event.body for event in await conversation.events() if isinstance(event.body, Condensation)]


async def shown(conversation: AsyncConversation) -> str:
    return str((await conversation.request("next")).body)


async def test_over_many_turns_prompts_begin_anew_seldom_and_never_cut_an_exchange(home: Home) -> None:
    model = Working()
    agent = agent_of(["never"]).replace(llm=model.llm, tools=[look], condenser=Window(tokens=900, keep=0.3))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        for n in range(24):
            await conversation.run(f"question {n}.")
        events = await conversation.events()
        anew = len(await notes_of(conversation))
    changed = [len(one) - shared(one, other) for one, other in zip(model.sent, model.sent[1:], strict=False)]
    assert sum(count > 0 for count in changed) == anew, "all else was found in the cache, to the last block"
    assert 2 <= anew <= 24 / 4
    assert max(map(len, model.sent)) < 40
    for messages in model.sent:
        check_exchanges(messages)
    assert [event.id.ordinal for event in events] == list(range(1, len(events) + 1)), "all of it can be read"


async def test_what_is_forgotten_at_once_stays_forgotten_in_forks_made_after_and_not_in_those_before(
    home: Home,
) -> None:
    agent = agent_of(lambda heard: Reply("notes" if "<conversation>" in heard.text else "yes"))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turns = [await conversation.run(f"question {n}.") for n in range(3)]
        before, was = await conversation.fork(), await conversation.events()
        made = await conversation.condense()
        assert made is not None
        assert (made.summary, made.kept_from) == ("notes", turns[-1].events[0].id.ordinal)  # type: ignore[union-attr]
        assert (await conversation.events())[: len(was)] == was, "ids and bodies stay as they are"
        after, at_the_turn = await conversation.fork(), await conversation.fork(at=turns[-1])
        for branch, forgotten in ((conversation, True), (after, True), (before, False), (at_the_turn, False)):
            assert ("question 0." not in await shown(branch)) == forgotten
            await branch.run("And now?")
            assert ("question 0." not in await shown(branch)) == forgotten
            assert "question 2." in await shown(branch)
        await conversation.rewind(at=turns[0])
        assert "question 0." in await shown(conversation)
        assert (await conversation.verify()).ok


async def test_only_the_newest_turn_is_left_in_the_end_and_a_new_one_has_nothing_to_forget(home: Home) -> None:
    agent = agent_of(["one", "two", "three"], condenser=Window(events=1000))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        assert await conversation.condense() is None
        for n in range(3):
            await conversation.run(f"question {n}.")
        while await conversation.condense() is not None:
            pass
        prompt = await shown(conversation)
        assert ("question 1." in prompt, "question 2." in prompt) == (False, True)
        assert len(await notes_of(conversation)) <= 2


async def test_whoever_asks_says_what_the_summary_should_look_at(home: Home) -> None:
    heard: list[str] = []

    def answer(said: Heard) -> Reply:
        heard.append(str(messages_of(said)[-1]["content"]))
        return Reply(f"answer {len(heard)}")

    agent = home.agent(Agent(scripted(answer)))
    async with AsyncConversation(agent, store=home.store) as conversation:
        for n in range(2):
            await conversation.run(f"question {n}")
        made = await conversation.condense(focus="Above all the colours.")
        assert made is not None
        assert made.summary == "answer 3"
        assert heard[-1].endswith("look at above all:\nAbove all the colours.")
        with pytest.raises(BadArgument):
            await conversation.condense(focus=" ")


async def test_a_condenser_that_asks_no_model_takes_no_focus(home: Home) -> None:
    agent = home.agent(Agent("scripted/echo", condenser=Window(events=100)))
    async with AsyncConversation(agent, store=home.store) as conversation:
        for n in range(2):
            await conversation.run(f"question {n}")
        with pytest.raises(BadArgument, match="asks no model"):
            await conversation.condense(focus="Above all the colours.")
        assert await notes_of(conversation) == []


async def test_what_goes_wrong_is_raised_and_nothing_has_changed_but_what_it_cost(home: Home) -> None:
    agent = agent_of(["one", "two", Reply("half", fault=Fault("cut", after=1)), Reply("notes", usage=Usage(1, 70))])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("question 0.")
        turn = await conversation.run("question 1.")
        was = await conversation.info()
        with pytest.raises(Stale):
            await conversation.condense(if_revision=was.revision - 1)
        with pytest.raises(ModelError):
            await conversation.condense(if_revision=was.revision)
        assert (await conversation.info()).revision == was.revision
        assert await conversation.condense(if_revision=was.revision) is not None
        assert (await conversation.stats()).spent.input >= 70
        assert (await conversation.turns()).items[-1].id == turn.id, "a note is no turn"


async def test_a_turn_that_is_faster_than_the_summary_stays_and_the_caller_is_told() -> None:
    asked = Signal()

    def answer(heard: Heard) -> Reply:
        if "<conversation>" not in heard.text:
            return Reply("yes")
        asked.set()
        return Reply("notes", delay=0.2, usage=Usage(1, 1000))

    agent = agent_of(answer)
    async with AsyncConversation(agent, store="memory:") as conversation:
        for n in range(2):
            await conversation.run(f"question {n}.")
        async with (
            await AsyncConversation.open(conversation.id, agent=agent, store="memory:") as other,
            anyio.create_task_group() as group,
        ):

            async def condense() -> None:
                with pytest.raises(Stale):
                    await conversation.condense()

            group.start_soon(condense)
            await asked.wait()
            await other.run("And now?")
        assert not await notes_of(conversation)
        assert (await conversation.stats()).spent.input >= 1000


async def test_while_a_turn_is_open_nothing_is_condensed_and_nobody_is_paid(home: Home) -> None:
    agent = agent_of(["one", "two", asks(call("look", at=1)), "never"], tools=[look], approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("question 0.")
        await conversation.run("question 1.")
        assert (await conversation.run("look")).outcome == "awaiting_approval"
        with pytest.raises(TurnOpen):
            await conversation.condense()


def test_it_is_the_same_without_async() -> None:
    with Conversation(agent_of(["one", "two"], condenser=Window()), store="memory:") as conversation:
        conversation.run("question 0.")
        conversation.run("question 1.")
        made = conversation.condense()
        assert made is not None
        assert "no longer shown" in made.summary


# Condensers of one's own.


class Forgetful:
    """Forgets all but the newest turn, in words of its own; it is not made where it is defined."""

    said: object = "Something was."

    def reached(self, events: int, tokens: int, *, context: int | None = None) -> bool:
        return events >= 8

    def due(
        self, events: Sequence[Event], tokens: int | None = None, *, context: int | None = None, force: bool = False
    ) -> Cut | None:
        return Window(events=8, keep=0.1).due(events, tokens, force=force)

    def question(self, cut: Cut) -> str | None:
        return None

    def condensed(self, cut: Cut, answer: str | None = None) -> tuple[AnyBody, ...]:
        if isinstance(self.said, Exception):
            raise self.said
        return (Condensation(str(self.said), cut.kept_from),) if isinstance(self.said, str) else (self.said,)  # type: ignore[return-value]


class Asking(Forgetful):
    """One that has a question, and says nothing of who is asked."""

    def question(self, cut: Cut) -> str | None:
        return f"What of {len(cut.forgotten)} events?"

    def condensed(self, cut: Cut, answer: str | None = None) -> tuple[AnyBody, ...]:
        return (Condensation(f"It said: {answer}", cut.kept_from),)


forgetful = Forgetful()


async def test_one_of_your_own_is_used_and_found_again_by_its_path(home: Home) -> None:
    agent = agent_of(lambda heard: Reply("yes"), condenser=forgetful)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        for n in range(4):
            await conversation.run(f"question {n}.")
        assert {one.summary for one in await notes_of(conversation)} == {"Something was."}
        async with await AsyncConversation.open(conversation.id, store=home.store) as again:
            await again.run("And now?")
    assert bind(document_of(agent)).condenser is forgetful
    with pytest.raises(BadAgent, match="Python object"):
        portable_document(agent)


async def test_one_with_a_question_has_the_agent_s_own_model_asked() -> None:
    agent = agent_of(lambda heard: Reply(heard.text[:20]), condenser=Asking())
    async with AsyncConversation(agent, store="memory:") as conversation:
        for n in range(3):
            await conversation.run(f"question {n}.")
        (note,) = await notes_of(conversation)
        assert note.summary.startswith("It said: What of")


@pytest.mark.parametrize("said", [RuntimeError("no"), "", SkillActivated("x", "y"), 7, Condensation("x", -5)])
async def test_one_that_is_broken_fails_no_turn(said: object) -> None:
    broken = Forgetful()
    broken.said = said
    async with AsyncConversation(
        agent_of(lambda heard: Reply("yes"), condenser=broken), store="memory:"
    ) as conversation:
        for n in range(5):
            assert (await conversation.run(f"question {n}.")).outcome == "committed"
        assert len((await conversation.turns(limit=100)).items) == 5
        assert {event.turn for event in await conversation.events()} == {
            turn.id for turn in (await conversation.turns(limit=100)).items
        }, "there is no note"


async def test_one_that_is_gone_is_listed_and_allow_goes_on_without(home: Home) -> None:
    agent = agent_of(lambda heard: Reply("yes"), condenser=Forgetful())  # by no name in a module
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("question 0.")
        id = conversation.id
    document = document_of(agent)
    with pytest.raises(CannotResume) as error:
        bind(document)
    (item,) = error.value.items
    assert (item.kind, item.name, item.why) == ("condenser", "Forgetful", "it has no import path")
    assert bind(document, agent).condenser is agent.condenser, "an agent that is given has it"
    if home.at_hand(agent) is not None:
        with pytest.raises(CannotResume, match="condenser Forgetful"):
            await AsyncConversation.open(id, store=home.store)
        async with await AsyncConversation.open(id, store=home.store, allow={"condenser"}) as again:
            assert again.agent is not None
            assert again.agent.condenser is None
            await again.run("And now?")
        async with await AsyncConversation.open(id, store=home.store) as again:
            await again.run("And now?")


def test_what_is_at_its_path_now_must_be_a_condenser() -> None:
    document = document_of(agent_of(["one"], condenser=forgetful))
    assert ":forgetful" in document
    other = document.replace("tests.conversation.test_condense:forgetful", f"{importable.__name__}:plain")
    with pytest.raises(CannotResume, match="is no condenser now"):
        bind(other)
    with pytest.raises(BadAgent, match="methods of Condenses"):
        agent_of(["one"], condenser=Forgetful)
    with pytest.raises(BadAgent, match="methods of Condenses"):
        agent_of(["one"], condenser=lambda events: None)


@pytest.mark.parametrize("condenser", [Condenser(tokens=5, keep=0.2, llm=LLM("scripted/echo")), Window(events=9)])
def test_those_of_the_box_are_stored_as_what_they_say(condenser: Condenser | Window) -> None:
    assert bind(document_of(agent_of(["one"], condenser=condenser))).condenser == condenser
