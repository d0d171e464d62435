"""The verbs of branches after each other: what one of them has made, the others go on from."""

from pathlib import Path
from typing import Any

import pytest
from tests.conversation.support.agents import agent_of, asks, call, kinds, messages_of, said
from tests.conversation.support.homes import Home, LocalHome

from forkpoint import Agent, AsyncConversation, AsyncConversations, ToolContext, tool
from forkpoint.conversation import Turn
from forkpoint.errors import BringRefused, NothingToRun
from forkpoint.events import Event, Gone
from forkpoint.testing import Heard, Reply

pytestmark = pytest.mark.anyio


class Desk:
    """An agent that looks at what it is told to. While it looks, it may be steered."""

    def __init__(self) -> None:
        self.steered: AsyncConversation | None = None
        self.seen: list[list[str]] = []  # what the model was sent

        @tool
        async def look(ctx: ToolContext, at: str) -> str:
            """Looks at something."""
            ctx.state[at] = "seen"
            if self.steered is not None:
                await self.steered.steer("mind the dust")
            return f"the {at} is full"

        def reply(heard: Heard) -> Reply:
            sent = [str(message["content"]) for message in messages_of(heard)]
            self.seen.append(sent)
            if sent[-1].startswith("look "):
                return asks(call("look", f"call_{heard.number}", at=sent[-1][5:]), text="Let me see.")
            if sent[-1] == "mind the dust" and self.steered is not None:
                self.steered = None
                return asks(call("look", f"call_{heard.number}", at="dust"), text="I see.")
            return Reply(f"So: {sent[-1][-20:]}")

        self.agent: Agent = agent_of(reply, tools=[look])

    def talk(self, home: Home, **options: Any) -> AsyncConversation:
        return AsyncConversation(home.agent(self.agent), store=home.store, **options)


def found(turn: Turn, kind: str, n: int = 0) -> Event:
    """The nth event of a kind."""
    event = [event for event in turn.events if event.envelope.kind == kind][n]
    assert isinstance(event, Event)
    return event


async def check(*conversations: AsyncConversation) -> None:
    """Each is as it was written, and each token is counted once."""
    for one in conversations:
        verified = await one.verify()
        assert verified.ok, verified.flaws
    (family,) = {(await one.stats()).family for one in conversations}
    spent = [(await one.stats()).spent for one in conversations]
    assert sum(spent[1:], spent[0]) == family


async def test_a_conversation_goes_on_after_a_message_that_was_brought_and_not_after_turns(
    home: Home, places: None
) -> None:
    talk = Desk().talk(home)
    await talk.run("hello")
    other = await talk.fork()
    await other.run("look disk")
    await talk.bring(other)
    went = await talk.go_on()
    assert (went.go_on, went.text) == (True, "So: So: the disk is full")
    (asked,) = (await talk.why(went)).calls
    assert (asked.shared, asked.unknown) == (2, ())
    await talk.bring(other, "turns")
    with pytest.raises(NothingToRun):
        await talk.go_on()
    after = await talk.run("and now?")
    (asked,) = (await talk.why()).calls
    assert ((await talk.why()).turn, asked.before, asked.unknown) == (after.id, went.id, ())
    await check(talk, other)


async def test_a_conversation_goes_on_from_the_half_turn_of_a_branch_that_it_keeps(home: Home, places: None) -> None:
    talk = Desk().talk(home)
    await talk.run("hello")
    turn = await talk.run("look disk")
    half = await talk.fork(at=found(turn, "tool_result"), cache="inherit")
    await talk.run("and then?")
    other = await talk.fork()
    aside = await other.keep(half)
    went = await other.go_on()
    assert [(one.id, one.partial) for one in (await other.turns()).items[1:]] == [(turn.id, True), (went.id, False)]
    (asked,) = (await other.why(went)).calls
    assert (asked.before, asked.shared, asked.unknown) == (turn.id, 4, ())
    assert (await other.stats()).spent == went.usage
    assert aside is not None
    await check(talk, half, other, aside)
    back = await other.keep(aside)
    assert await other.events() == await talk.events()
    assert back is not None
    await check(talk, half, other, aside, back)


@pytest.mark.parametrize("what", ["answer", "turns", "summary"])
async def test_what_stands_around_a_half_turn_is_brought(home: Home, places: None, what: Any) -> None:
    talk = Desk().talk(home)
    await talk.run("hello")
    other = await talk.fork()
    turn = await talk.run("look disk")
    half = await talk.fork(at=found(turn, "tool_result"))
    if what == "summary":
        brought = await other.bring(half, what)
        assert brought.usage.calls == 1
    else:
        with pytest.raises(BringRefused):
            await other.bring(half, what)
        brought = await other.bring(talk, what)
    await half.go_on()
    again = await other.fork(before=brought.events[0])
    copied = await again.bring(half, what)  # the part and what went on from it are one exchange
    if what == "turns":
        assert said(copied.events) == said(await half.events())[2:]
    await half.rewind(at=found(turn, "tool_result"))
    assert (await half.bring(talk)).text.endswith(turn.text)
    assert (await half.go_on()).go_on
    assert (await half.verify()).ok
    assert (await again.verify()).ok


async def test_a_fork_with_another_result_is_kept_and_that_is_undone(home: Home, places: None) -> None:
    talk = Desk().talk(home)
    await talk.run("hello")
    turn = await talk.run("look disk")
    what_if = await talk.fork(at=turn.calls[0], results={turn.calls[0].id: "empty"}, state={"why": 1})
    went = await what_if.go_on()
    before = await talk.events()
    aside = await talk.keep(what_if)
    assert aside is not None
    assert (await talk.events(), await talk.agent_state()) == (await what_if.events(), {"why": 1})
    assert [(one.id, one.partial) for one in (await talk.turns()).items[1:]] == [(turn.id, True), (went.id, False)]
    more = await talk.run("and now?")
    (asked,) = (await talk.why(more)).calls
    assert (asked.before, asked.shared, asked.unknown) == (went.id, 6, ())
    await check(talk, what_if, aside)
    back = await talk.keep(aside)
    assert (await talk.events(), await talk.agent_state()) == (before, {"disk": "seen"})
    assert back is not None
    await check(talk, what_if, aside, back)
    answer = await talk.bring(back)
    assert answer.text.endswith("So: and now?")
    with pytest.raises(NothingToRun):
        await back.go_on()
    assert [one.text for one in (await back.turns()).items][2:] == [went.text, more.text]


async def test_a_go_on_is_steered_and_goes_on_before_and_after_the_message(home: Home, places: None) -> None:
    desk = Desk()
    talk = desk.talk(home)
    turn = await talk.run("look disk")
    fork = await talk.fork(at=found(turn, "user_message"))
    desk.steered = fork
    went = await fork.go_on()
    sent = ["user_message", "tool_result", "tool_result"]
    assert [kind for kind in kinds(went.events) if kind in sent] == ["tool_result", "user_message", "tool_result"]
    prompts = desk.seen[-3:]
    places_of_it = [found(went, "tool_result"), found(went, "user_message"), found(went, "tool_result", 1)]
    asides = []
    for place, is_told in zip(reversed(places_of_it), (True, True, False), strict=True):
        asides.append(await fork.rewind(at=place))
        half = (await fork.turns()).items[-1]
        assert (half.id, half.partial, half.events[-1]) == (went.id, True, place)
        again = await fork.go_on()
        assert ("mind the dust" in desk.seen[-1]) == is_told
        asides.append(await fork.rewind(before=again))
    assert desk.seen[-1] == prompts[1][:-1], "the results without the message"
    set_aside = [one for one in asides if one is not None]
    assert (await fork.diff(set_aside[0])).b.turns == 1
    await check(talk, fork, *set_aside)


async def test_a_family_of_all_verbs_comes_to_another_store_as_it_is(tmp_path: Path, places: None) -> None:
    desk = Desk()
    talk = desk.talk(LocalHome(tmp_path), conversation_id="talk")
    await talk.run("hello")
    desk.steered = talk
    turn = await talk.run("look disk")
    half = await talk.fork(at=found(turn, "tool_result"), conversation_id="half")
    await half.go_on()
    what_if = await talk.fork(
        at=turn.calls[1], results={turn.calls[1].id: "clean"}, state={"why": 1}, conversation_id="what-if"
    )
    went = await what_if.go_on()
    await half.bring(what_if)
    await half.go_on()
    aside = await talk.keep(half)
    assert aside is not None
    await aside.rename("aside")
    await talk.bring(aside, "summary")
    await talk.run("and now?")
    await what_if.rewind(at=found(went, "model_called"))
    names = ["talk", "half", "what-if", "aside"]
    file, elsewhere = tmp_path / "family.jsonl", f"sqlite:///{tmp_path / 'elsewhere.db'}"
    await talk.export(file, family=True)
    async with AsyncConversations(store=elsewhere) as them, AsyncConversations(store=LocalHome(tmp_path).store) as ours:
        await them.import_(file)
        verified = await them.verify()
        assert verified.ok, verified.flaws
        for name in names:
            here, there = await ours.open(name, bind=False), await them.open(name, bind=False)
            assert [event.body for event in await there.events()] == [event.body for event in await here.events()]
            assert await there.stats() == await here.stats()
            assert await there.agent_state() == await here.agent_state()
            shown = [[(one.id, one.partial, one.usage) for one in (await c.turns()).items] for c in (here, there)]
            assert shown[0] == shown[1]
        copies = [await them.open(name, bind=False) for name in names]
        found_there = await copies[0].diff(copies[2])
        assert found_there.shared == (await talk.diff(what_if)).shared


@pytest.mark.parametrize("by", ["source", "fork"])
async def test_a_turn_is_erased_of_which_a_branch_has_a_half(home: Home, places: None, by: str) -> None:
    talk = Desk().talk(home)
    await talk.run("hello")
    turn = await talk.run("look disk")
    half = await talk.fork(at=found(turn, "tool_result"))
    went = await half.go_on()
    what_if = await talk.fork(at=turn.calls[0], results={turn.calls[0].id: "empty"})
    copy = await talk.fork(before=turn)
    await copy.bring(talk, "turns")
    before = [await one.stats() for one in (talk, half, what_if, copy)]
    await (talk if by == "source" else half).erase(turn=turn.id, reason="a request")
    words = [said(await one.events()) for one in (talk, half, what_if, copy)]
    assert words[0] == words[3] == [("user", "hello"), ("assistant", "So: hello")]
    assert words[1][2:] == [("assistant", went.text)]
    assert words[2][2:] == [("tool", "empty")]
    assert [await one.stats() for one in (talk, half, what_if, copy)] == before
    assert [one.partial for one in (await half.turns()).items] == [False, True, False]
    assert (await half.diff(talk)).ancestor == str(found(turn, "tool_result").id)
    assert (await what_if.diff(talk)).ancestor == str(turn.calls[0].event)
    assert any(isinstance(event.body, Gone) for event in await half.events())
    await half.rewind(before=went)
    await half.go_on()
    for one in (talk, half, what_if, copy):
        verified = await one.verify()
        assert verified.ok, verified.flaws
