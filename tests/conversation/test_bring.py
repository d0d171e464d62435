"""`bring()`: what a branch has said becomes part of another one, as a note that says where it came from."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
import pytest
from tests.conversation.support.agents import PATIENCE, Signal, asks, call, kinds, said, scripted, served
from tests.conversation.support.homes import Home
from tests.conversation.support.team import obedient, orders, spawn, wait

from forkpoint import LLM, Agent, AsyncConversation, AsyncConversations, Condenser, Conversation, tool
from forkpoint.backend.bring import BringOptions, BringReport
from forkpoint.errors import BadArgument, BringRefused, Busy, ForkpointError, KeyReused, NotFound, Stale, TurnOpen
from forkpoint.events import AssistantMessage, Brought, Event, Gone, ToolCall, Usage, UserMessage
from forkpoint.llm.model import Price
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.store.protocol import Store
from forkpoint.testing import Fault, Heard, ModelServer, Recorded, Reply, Script, ScriptedCall

pytestmark = pytest.mark.anyio

SECRET = "Ann-Kathrin-4711"


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is full"


def looks(heard: Heard) -> Reply:
    """Looks at what it is told to, sums up what it is given, and thinks before it speaks."""
    if heard.text.startswith("<branch>"):
        return Reply(f"They looked at {SECRET if SECRET in heard.text else 'things'}.")
    if heard.text.startswith("look ") and heard.body["messages"][-1]["role"] == "user":
        return Reply(reasoning="Hm.", calls=(call("look", f"call_{heard.number:024}", at=heard.text[5:]),))
    return Reply(f"You said: {heard.text}", reasoning="Well.")


def looking(**settings: Any) -> Agent:
    return Agent(scripted(looks, price=Price(1.0, 2.0)), tools=[look], **settings)


@pytest.fixture
async def store(home: Home, places: None) -> AsyncIterator[Store]:
    async with await home.opened() as store:
        yield store


@pytest.fixture
async def talk(home: Home, store: Store) -> AsyncIterator[AsyncConversation]:
    async with AsyncConversation(home.agent(looking()), conversation_id="talk", store=home.store) as talk:
        await talk.run("hello")
        yield talk


@pytest.fixture
async def branch(talk: AsyncConversation) -> AsyncConversation:
    """A branch with two turns of its own."""
    branch = await talk.fork(conversation_id="try-2", title="The other way")
    await branch.run("look disk")
    await branch.run("and then?")
    return branch


def header_of(done: BringReport) -> Brought:
    header = done.events[0].body
    assert isinstance(header, Brought)
    return header


async def origin_events(conversation: AsyncConversation, header: Brought) -> list[Event]:
    """The events that a header names."""
    by_turn: dict[str, list[Event]] = {}
    for event in await conversation.events():
        by_turn.setdefault(event.turn, []).append(event)
    return [by_turn[origin.partition("/")[0]][int(origin.partition("/")[2])] for origin in header.origins]


# What is brought.


async def test_an_answer_becomes_one_message_that_names_its_source_and_what_was_asked(
    store: Store, talk: AsyncConversation, branch: AsyncConversation
) -> None:
    before, spent = await talk.info(), (await talk.stats()).spent
    done = await talk.bring(branch)
    assert (done.what, done.source, done.conversation, done.usage) == ("answer", branch.id, talk.id, Usage())
    assert kinds(done.events) == ["brought", "user_message"]
    for words in ("try-2", "The other way", "and then?", "You said: and then?"):
        assert words in done.text
    assert "disk" not in done.text
    assert (await talk.events())[-2:] == list(done.events)
    header = header_of(done)
    found = await origin_events(branch, header)
    assert said(found) == [("user", "and then?"), ("assistant", "You said: and then?")]
    ordinals = [event.id.ordinal for event in found]
    digests = await store.digests(branch.id)
    assert header.digests == tuple(digests[ordinal - 1].hex() for ordinal in ordinals)
    assert (await talk.stats()).spent == spent, "the cost of the branch was copied"
    assert (await talk.info()).revision == before.revision + 1
    assert len((await talk.turns()).items) == 1, "a note is not a turn"
    assert (await store.verify()).ok


async def test_a_summary_is_written_by_the_conversations_own_model_and_paid_once(
    talk: AsyncConversation, branch: AsyncConversation
) -> None:
    spent, theirs = (await talk.stats()).spent, (await branch.stats()).spent
    done = await talk.bring(branch.id, "summary")
    assert kinds(done.events) == ["brought", "user_message"]
    assert done.text.endswith("They looked at things.")
    assert "try-2" in done.text
    assert done.usage.calls == 1
    assert done.cost is not None
    assert (await talk.stats()).spent == spent + done.usage
    assert (await branch.stats()).spent == theirs
    assert (await talk.stats()).family == spent + theirs + done.usage
    assert said(await origin_events(branch, header_of(done)))[0] == ("user", "look disk")


async def test_the_model_of_the_condenser_writes_the_summary_if_it_has_one(home: Home) -> None:
    other = scripted(["From the condenser."])
    agent = home.agent(Agent(scripted(["one", "two"]), condenser=Condenser(llm=other)))
    async with AsyncConversation(agent, store=home.store) as talk:
        await talk.run("hello")
        fork = await talk.fork()
        await fork.run("on")
        done = await talk.bring(fork, "summary")
        assert done.text.endswith(f"written by {other.model}:\n\nFrom the condenser.")


async def test_turns_become_copies_with_their_origin_without_thoughts_state_and_cost(
    store: Store, talk: AsyncConversation, branch: AsyncConversation
) -> None:
    await branch.update_state({"x": 1})
    spent = (await talk.stats()).spent
    done = await talk.bring("try-2", "turns")
    copies = done.events[1:]
    assert kinds(copies) == [
        "user_message",
        "tool_call",
        "tool_result",
        "assistant_message",
        "user_message",
        "assistant_message",
    ]
    assert [copy.envelope.origin for copy in copies] == list(header_of(done).origins)
    originals = await origin_events(branch, header_of(done))
    for copy, original in zip(copies, originals, strict=True):
        assert (copy.kind, copy.envelope.time, copy.envelope.call_id) == (
            original.kind,
            original.envelope.time,
            original.envelope.call_id,
        )
        if isinstance(copy.body, ToolCall | AssistantMessage):
            assert (copy.body.item, copy.body.provider) == (None, None)
    assert [copy.envelope.response for copy in copies] == [None, 1, None, 2, None, 3]
    assert await talk.agent_state() == {}
    assert (await talk.stats()).spent == spent
    assert (done.left_out, header_of(done).count) == (0, 6)
    assert (await store.verify()).ok


async def test_what_was_brought_before_is_not_brought_again(talk: AsyncConversation, branch: AsyncConversation) -> None:
    await talk.bring(branch, "turns")
    with pytest.raises(BringRefused, match="stand here already"):
        await talk.bring(branch, "turns")
    await branch.run("more")
    done = await talk.bring(branch, "turns")
    assert (said(done.events), done.left_out) == ([("user", "more"), ("assistant", "You said: more")], 2)
    with pytest.raises(BringRefused, match="stand here already"):
        await branch.bring(talk, "turns")  # they are its own


async def test_a_turn_that_has_no_answer_is_left_out(home: Home) -> None:
    schema = ToolSchema("ask_user", "Asks.", parameters='{"type":"object","properties":{}}')
    replies: list[Reply | str] = ["hi", "one", asks(ScriptedCall("ask_user", "{}", "call_of_the_client_00001"))]
    async with AsyncConversation(home.agent(Agent(scripted(replies), client_tools=[schema])), store=home.store) as talk:
        await talk.run("hello")
        fork = await talk.fork()
        await fork.run("first")
        await fork.run("second")
        for what in ("turns", "summary"):
            with pytest.raises(BringRefused, match="open there"):
                await talk.bring(fork, what)
        done = await talk.bring(fork)
        assert "first" in done.text
        with pytest.raises(BringRefused, match="open here"):
            await fork.bring(talk)


async def test_a_sub_agents_answer_can_be_brought_to_its_parent(home: Home) -> None:
    agent = home.agent(Agent(scripted(obedient), sub_agents=True))
    async with AsyncConversation(agent, store=home.store) as parent:
        await parent.run(orders([spawn("find it", "c1", fork="all")], [wait("c2")], say="It is done."))
        (member,) = await parent.list_agents()
        done = await parent.bring(member.conversation)
        assert f"the sub-agent {member.conversation}" in done.text
        assert "find it" in done.text
        with pytest.raises(BringRefused):  # what it began with are copies of what stands here
            await parent.bring(member.conversation, "turns")
        assert (await parent.verify()).ok


async def test_after_it_a_turn_runs_and_a_fork_and_a_rewind_are_as_ever(
    talk: AsyncConversation, branch: AsyncConversation
) -> None:
    done = await talk.bring(branch, "turns")
    turn = await talk.run("go on")
    assert turn.text == "You said: go on"
    fork = await talk.fork(at=done.events[-1])
    assert len(await fork.events()) == done.events[-1].id.ordinal
    aside = await talk.rewind(at=done.events[-1])
    assert aside is not None
    inside = await talk.fork(at=done.events[3])  # after the result of a call
    assert kinds(await inside.events())[-1] == "tool_result"
    assert (await inside.run("on")).outcome == "committed"
    again = await inside.fork()
    with pytest.raises(BringRefused, match="nothing since"):
        await inside.bring(again)


# What is refused.


async def test_a_branch_of_another_family_one_without_news_and_itself_are_refused(
    home: Home, talk: AsyncConversation
) -> None:
    fork = await talk.fork()
    with pytest.raises(BringRefused, match="nothing since"):
        await talk.bring(fork)
    await fork.update_state({"x": 1})
    for what in ("answer", "summary", "turns"):
        with pytest.raises(BringRefused):
            await talk.bring(fork, what)
    with pytest.raises(BringRefused, match="same conversation"):
        await talk.bring(talk)
    async with AsyncConversation(home.agent("scripted/echo"), store=home.store) as other:
        await other.run("hello")
        with pytest.raises(BringRefused, match="another family"):
            await talk.bring(other)
    with pytest.raises(NotFound):
        await talk.bring("nobody")
    with pytest.raises(BadArgument):
        await talk.bring(fork, "everything")  # type: ignore[arg-type]


async def test_while_a_turn_runs_or_waits_nothing_is_brought_and_no_model_is_paid(home: Home) -> None:
    arrived, release = Signal(), Signal()

    @tool
    async def stop() -> str:
        """Waits."""
        arrived.set()
        await release.wait()
        return "done"

    @tool(risky=True)
    def risk() -> str:
        """Risks something."""
        return "done"

    def replies(heard: Heard) -> Reply:
        wants = {"stop": "stop", "risk": "risk"}.get(heard.text)
        if wants and heard.body["messages"][-1]["role"] == "user":
            return asks(call(wants))
        return Reply("fine")

    agent = home.agent(Agent(scripted(replies), tools=[stop, risk], approval="risky"))
    async with AsyncConversation(agent, store=home.store) as talk:
        await talk.run("hello")
        fork = await talk.fork()
        await fork.run("on")
        family = (await talk.stats()).family
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.run, "stop")
            with anyio.fail_after(PATIENCE):
                await arrived.wait()
            for what in ("answer", "summary", "turns"):
                with pytest.raises(Busy):
                    await talk.bring(fork, what)
            release.set()
        assert (await talk.run("risk")).outcome == "awaiting_approval"
        with pytest.raises(TurnOpen):
            await talk.bring(fork, "summary")
        assert (await fork.stats()).family.calls == family.calls + 3


async def test_another_tenant_sees_no_branch_to_bring_from(store: Store, talk: AsyncConversation) -> None:
    from forkpoint.engine.engine import Engine

    elsewhere = Engine(store.within("elsewhere"), owns_store=False)
    with pytest.raises(NotFound):
        await elsewhere.branches.bring(talk.id, BringOptions(branch="talk", what="answer"))
    with pytest.raises(NotFound):
        await elsewhere.branches.diff(talk.id, "talk")


async def test_a_summary_that_fails_is_a_charge_and_changes_nothing(home: Home) -> None:
    failing = Reply("half", fault=Fault("overloaded"))
    agent = home.agent(Agent(scripted(["one", "two", failing, Reply("cut", finish="length")])))
    async with AsyncConversation(agent, store=home.store) as talk:
        await talk.run("hello")
        fork = await talk.fork()
        await fork.run("on")
        before, spent = await talk.events(), (await talk.stats()).spent
        with pytest.raises(ForkpointError):
            await talk.bring(fork, "summary")
        with pytest.raises(BringRefused, match="cut"):
            await talk.bring(fork, "summary")
        assert await talk.events() == before
        assert (await talk.stats()).spent.calls > spent.calls, "what was paid for is counted"


# Once.


@pytest.mark.parametrize("what", ["answer", "summary", "turns"])
async def test_the_same_key_brings_once_and_asks_no_model_again(
    talk: AsyncConversation, branch: AsyncConversation, what: Literal["answer", "summary", "turns"]
) -> None:
    first = await talk.bring(branch, what, key="k")
    spent = (await talk.stats()).spent
    await talk.run("meanwhile")
    await branch.run("meanwhile")
    spent_after = (await talk.stats()).spent
    assert await talk.bring(branch, what, key="k") == first
    assert await talk.bring(branch, what, key="k", if_revision=0) == first, "a key is looked up first"
    assert (await talk.stats()).spent == spent_after
    assert spent_after.calls == spent.calls + 1
    with pytest.raises(KeyReused):
        await talk.bring(branch, "turns" if what == "answer" else "answer", key="k")
    with pytest.raises(KeyReused):
        await talk.run("hello", key="k")


async def test_the_same_key_sent_twice_at_once_asks_the_model_once(
    talk: AsyncConversation, branch: AsyncConversation
) -> None:
    found: list[BringReport] = []

    async def bring() -> None:
        found.append(await talk.bring(branch, "summary", key="k"))

    spent = (await talk.stats()).spent
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(bring)
    assert len({done.id for done in found}) == 1
    assert (await talk.stats()).spent.calls == spent.calls + 1


async def test_a_key_gives_its_note_though_the_branch_is_gone(
    talk: AsyncConversation, branch: AsyncConversation
) -> None:
    first = await talk.bring(branch.id, key="k")
    id = branch.id
    await branch.delete()
    assert await talk.bring(id, key="k") == first
    with pytest.raises(NotFound):
        await talk.bring(id, key="another")


async def test_a_revision_that_is_not_the_conversations_is_refused(
    talk: AsyncConversation, branch: AsyncConversation
) -> None:
    revision = (await talk.info()).revision
    for what in ("answer", "summary", "turns"):
        with pytest.raises(Stale):
            await talk.bring(branch, what, if_revision=revision - 1)
    await talk.bring(branch, if_revision=revision)
    with pytest.raises(Stale):
        await talk.bring(branch, if_revision=revision)


def test_a_program_that_is_not_async_brings_too(home: Home) -> None:
    with Conversation(home.agent("scripted/echo"), store=home.store) as talk:
        talk.run("hello")
        with talk.fork() as fork:
            fork.run("on")
            assert "You said: on" in talk.bring(fork).text


async def test_without_its_functions_a_conversation_brings_what_needs_no_model(
    home: Home, talk: AsyncConversation, branch: AsyncConversation
) -> None:
    async with await AsyncConversation.open(talk.id, store=home.store, bind=False) as reader:
        assert (await reader.bring(branch)).what == "answer"
        assert (await reader.bring(branch, "turns")).what == "turns"


# What models are shown.


@pytest.fixture
def server(places: None) -> Iterator[ModelServer]:
    def reply(heard: Heard) -> Reply:
        items = heard.body.get("messages") or heard.body.get("input")
        if heard.text.startswith("look") and b"is full" not in msgspec.json.encode(items[-1]):
            return Reply(reasoning="Let me see.", calls=(ScriptedCall("look", '{"at": "it"}', "call_1"),))
        return Reply(f"You said: {heard.text}", reasoning="That is simple.")

    with ModelServer(Script(reply)) as server:
        yield server


def messages_in(request: Recorded) -> list[Any]:
    body = json.loads(request.body)
    found: list[Any] = body.get("messages") or body["input"]
    for message in found:
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            part.pop("cache_control", None)
    return found


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
@pytest.mark.parametrize("what", ["answer", "turns"])
async def test_the_prompt_before_is_a_prefix_of_the_prompt_after_it_and_calls_pair(
    server: ModelServer, wire: str, what: Literal["answer", "turns"]
) -> None:
    if wire == "messages":
        llm = LLM("anthropic/a-model", base_url=server.root)
    else:
        llm = LLM("openai/a-model", api=wire, base_url=server.url)  # type: ignore[arg-type]
    async with AsyncConversation(Agent(llm, tools=[look]), store="memory:") as talk:
        await talk.run("look first")
        fork = await talk.fork()
        await fork.run("look there")
        await talk.run("look here")
        before = messages_in(server.last)
        await talk.bring(fork, what)
        await talk.run("go on")
        after = messages_in(server.last)  # the recording server refuses calls without results
        assert after[: len(before)] == before
        text = json.dumps(after[len(before) :])
        assert ("look there" in text, "go on" in text) == (True, True)
        brought = text.partition("look there")[2].partition("go on")[0]
        assert ("is full" in brought) == (what == "turns")
        assert "Let me see." not in brought, "thoughts are not brought"
        assert (await talk.verify()).ok


# What goes with it.


def found_in(file: Path) -> list[str]:
    near = [path for path in file.parent.rglob(f"{file.name}*") if path.is_file()]
    return [path.name for path in near if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("what", ["answer", "summary", "turns"])
@pytest.mark.parametrize("part", ["messages", "turn"])
async def test_erasing_what_was_brought_erases_what_was_made_of_it(
    home: Home, store: Store, talk: AsyncConversation, what: Literal["answer", "summary", "turns"], part: str
) -> None:
    fork = await talk.fork()
    await fork.run("before")
    turn = await fork.run(f"I am {SECRET}")
    done = await talk.bring(fork, what)
    later = await talk.fork()
    if what != "turns":
        await later.bring(fork, what)
    assert SECRET in json.dumps(said(done.events))
    events = {event.envelope.kind: event for event in turn.events}
    if part == "turn":
        await fork.erase(turn=turn, reason="a request")
    else:
        await fork.erase(event=events["user_message"], reason="a request")  # type: ignore[arg-type]
        await fork.erase(event=events["assistant_message"], reason="a request")  # type: ignore[arg-type]
    assert found_in(home.file) == []
    last = [event for event in await talk.events() if event.turn == done.id]
    assert isinstance(last[0].body, Brought), "where it came from stays known"
    assert any(isinstance(event.body, Gone) for event in last)
    assert (await talk.run("go on")).outcome == "committed"
    checked = await store.verify()
    assert checked.ok, checked.flaws


@pytest.mark.parametrize("what", ["answer", "turns"])
async def test_erasing_a_quote_or_a_copy_erases_what_it_repeats(
    home: Home, store: Store, talk: AsyncConversation, what: Literal["answer", "turns"]
) -> None:
    fork = await talk.fork()
    await fork.run(f"I am {SECRET}")
    done = await talk.bring(fork, what, key="k")
    receipt = await talk.erase(turn=done.id, reason="a request")
    assert receipt.touched == 2
    assert found_in(home.file) == []
    assert (await store.verify()).ok


async def test_a_brought_summary_is_kept_if_summaries_are(home: Home, talk: AsyncConversation) -> None:
    fork = await talk.fork()
    turn = await fork.run(f"I am {SECRET}")
    done = await talk.bring(fork, "summary")
    preview = await fork.erase(turn=turn, reason="a request", preview=True)
    assert preview.summaries == (str(done.events[1].id),)
    receipt = await fork.erase(turn=turn, reason="a request", keep_summaries=True)
    assert (receipt.summaries, receipt.summaries_kept) == ((str(done.events[1].id),), True)
    assert found_in(home.file) != []
    await fork.erase(turn=(await fork.run(f"again {SECRET}")), reason="a request")
    message = (await talk.events())[-1]
    assert isinstance(message.body, UserMessage), "it was not made of the second turn"
    await talk.erase(event=done.events[0], reason="a request")  # nothing would lead to the message any more
    assert found_in(home.file) == []


async def test_it_leaves_and_comes_with_an_export(home: Home, tmp_path: Path, talk: AsyncConversation) -> None:
    fork = await talk.fork(conversation_id="branch")
    turn = await fork.run(f"look {SECRET}")
    for what in ("answer", "summary", "turns"):
        await talk.bring(fork, what)
    file = tmp_path / "export"
    await talk.export(file, family=True)
    events = [(event.envelope, event.body) for event in await talk.events()]
    other = tmp_path / "other" / "store.db"
    other.parent.mkdir()
    async with AsyncConversations(f"sqlite:///{other}") as them:
        await them.import_(file)
        copy = await them.open("talk", bind=False)
        assert [(event.envelope, event.body) for event in await copy.events()] == events
        assert (await them.verify()).ok
        source = await them.open("branch", bind=False)
        await source.erase(turn=turn.id, reason="a request")
        assert (await them.verify()).ok
        await copy.close()
        await source.close()
    assert found_in(other) == []


async def test_nothing_that_is_erased_meanwhile_comes_back(tmp_path: Path) -> None:
    """The source is erased while the summary is written."""
    file = tmp_path / "store.db"

    def reply(heard: Heard) -> Reply:
        return Reply(f"They are {SECRET if SECRET in heard.text else 'gone'}.")

    done: list[BringReport] = []
    with ModelServer(Script(reply)) as server:
        talk = await AsyncConversation.open("talk", create=Agent(served(server)), store=f"sqlite:///{file}")
        fork = await talk.fork()
        turn = await fork.run(f"I am {SECRET}")

        async def bring() -> None:
            done.append(await talk.bring(fork, "summary"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                with server.holding():
                    tasks.start_soon(bring)
                    await server.heard(2)
                    await fork.erase(turn=turn, reason="a request")
        assert (len(server.requests), "gone" in done[0].text) == (3, True)
        assert (await talk.stats()).spent.calls == 2, "the first summary was paid for too"
        assert found_in(file) == []
        await fork.close()
        await talk.close()
