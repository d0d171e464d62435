"""What is missing of all that a conversation was made with, and what it goes on with where that is allowed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conversation.support.homes import new_file

from forkpoint import LLM, Agent, AsyncConversation, Conversation, Role, SubAgents, Turn, TurnFailed, tool
from forkpoint.backend.allowance import allows, as_allowed
from forkpoint.backend.settings import Settings, SubAgentOf
from forkpoint.errors import BadArgument, CannotResume, Item
from forkpoint.events import ManifestChanged, SettingsChanged, ToolCall
from forkpoint.ids import new_id
from forkpoint.llm.model import Retries
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.store import open_store
from forkpoint.store.values import Lineage, NewConversation
from forkpoint.testing import Fault, Reply, Script, ScriptedCall

pytestmark = pytest.mark.anyio


@dataclass
class Verdict:
    text: str


def looking() -> Any:
    """A tool that is nowhere to be imported."""

    @tool
    def look(place: str = "here") -> str:
        """Looks."""
        return f"saw {place}"

    return look


def listening() -> Any:
    @tool
    def listen() -> str:
        """Listens."""
        return "heard"

    return listen


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{new_file(tmp_path)}"


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes a model that says these, once each."""
    number = iter(range(100))
    return lambda *said: Script([Reply(one) if isinstance(one, str) else one for one in said]).register(
        f"{request.node.name}-{next(number)}"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "work")


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def remove(folder: Path, becomes: str = "gone") -> None:
    """Something else stands where the folder was, or nothing does."""
    folder.unlink() if folder.is_symlink() or folder.is_file() else folder.rmdir()
    if becomes == "a file":
        folder.write_text("")
    elif becomes == "a link to nowhere":
        folder.symlink_to(folder / "nowhere")


async def begun(agent: Agent, store: str, **options: Any) -> str:
    """The id of a conversation with one turn."""
    async with AsyncConversation(agent, store=store, **options) as made:
        await made.run("one")
        return made.id


async def refused(id: str, store: str, **options: Any) -> tuple[Item, ...]:
    """What keeps a conversation from being opened."""
    with pytest.raises(CannotResume) as error:
        await AsyncConversation.open(id, store=store, **options)
    assert error.value.missing == "; ".join(map(str, error.value.items))
    return error.value.items


async def looked_at(id: str, store: str) -> tuple[Any, ...]:
    """All that is stored of it."""
    async with await AsyncConversation.open(id, bind=False, store=store) as read, await open_store(store) as held:
        return await read.info(), await read.events(), (await read.turns()).items, (await held.read(id)).settings


async def settings_of(id: str, store: str) -> Settings:
    return Settings.from_json((await looked_at(id, store))[3])


# What is listed.


async def test_everything_that_is_missing_is_an_item_and_nothing_is_written(
    store: str, folder: Path, model: Callable[..., str]
) -> None:
    def asks(call: ToolCall, tool: Any) -> bool:
        return False

    @dataclass
    class Local:
        text: str

    agent = Agent(model('{"text":"a"}'), tools=[looking(), listening()], output=Local, approval=asks)
    id = await begun(agent, store, workspace=folder)
    remove(folder)
    before = await looked_at(id, store)
    items = await refused(id, store, agent="scripted/echo")
    assert [(item.kind, item.name) for item in items] == [
        ("workspace", str(folder)),
        ("tool", "listen"),
        ("tool", "look"),
        ("output", "Local"),
        ("approval", "asks"),
        ("model", agent.llm.model),
    ]
    assert str(items[0]) == f"workspace {folder}: there is no such folder"
    assert str(items[4]).startswith("approval policy asks: ")
    assert "scripted/echo" in items[5].why
    assert await looked_at(id, store) == before
    every = {"tools", "output", "approval", "workspace", "model"}
    for kind in every:
        left = await refused(id, store, agent="scripted/echo", allow=every - {kind})
        assert {item.kind for item in left} == {kind.removesuffix("s")}, "what is allowed is not listed"
    async with await AsyncConversation.open(id, agent="scripted/echo", allow=every, store=store) as opened:
        assert opened.agent is not None
        assert (opened.agent.tools, opened.agent.output, opened.workspace) == ((), None, None)
        assert (opened.agent.approval, opened.agent.llm.model) == ("always", "scripted/echo")
    assert await looked_at(id, store) == before, "opening writes nothing, whatever it goes on without"


@pytest.mark.parametrize(
    "allow", ["tool", "agent", "agent:x", "tools:look", "tool:", "", "everything", ["tools", "toolz"], [3]], ids=str
)
async def test_what_cannot_be_allowed_is_refused_before_anything_is_looked_at(allow: Any) -> None:
    with pytest.raises(BadArgument, match="allow="):
        await AsyncConversation.open("nobody", allow=allow, store="memory:")


def test_one_text_is_one_thing_that_is_allowed() -> None:
    assert as_allowed("tools") == {"tools"}
    assert as_allowed(["tool:a", "model"]) == {"tool:a", "model"}
    assert allows(as_allowed("workspace:/a:b"), Item("workspace", "/a:b", ""))
    assert not allows(as_allowed("workspace:/a"), Item("workspace", "/a:b", ""))
    assert not allows(as_allowed(["tools", "model"]), Item("agent", "", ""))


# Without tools.


async def test_a_conversation_goes_on_without_a_tool_and_the_next_turn_records_that(
    store: str, model: Callable[..., str]
) -> None:
    agent = Agent(model("a", "b", "c"), tools=[looking(), listening()], instructions="Be brief.")
    id = await begun(agent, store)
    given = agent.replace(tools=[listening()])
    (item,) = await refused(id, store, agent=given)
    assert (item.kind, item.name) == ("tool", "look")
    async with await AsyncConversation.open(id, agent=given, allow={"tool:look"}, store=store) as opened:
        assert opened.agent is not None
        assert [one.name for one in opened.agent.tools] == ["listen"]
        assert (await opened.request("two")).body.count('"look"') == 0
        assert (await opened.run("two")).text == "b"
        events = await opened.events()
        changed = [event.body for event in events if isinstance(event.body, ManifestChanged)]
        assert [body.reason for body in changed] == ["the first", "changed: tool look removed"]
        new = [event.body.settings for event in events if isinstance(event.body, SettingsChanged)][-1]
        assert '"look"' not in new
        assert '"listen"' in new
        assert (await opened.run("three")).text == "c"
        assert len(await opened.events(kinds=["settings_changed", "manifest_changed"])) == 4, "it is said once"
        assert (await opened.verify()).ok
    async with await AsyncConversation.open(id, agent=given, store=store) as again:
        assert again.agent is not None
        assert [one.name for one in again.agent.tools] == ["listen"]


async def test_only_the_tools_that_are_named_may_be_missing(store: str, model: Callable[..., str]) -> None:
    id = await begun(Agent(model("a"), tools=[looking(), listening()]), store)
    (item,) = await refused(id, store, allow=["tool:look"])
    assert (item.kind, item.name) == ("tool", "listen")
    with Conversation.open(id, allow=["tool:look", "tool:listen"], store=store) as opened:
        assert opened.agent is not None
        assert opened.agent.tools == ()


async def test_a_tool_that_has_changed_is_left_out_and_not_taken_for_the_one_that_was(
    store: str, model: Callable[..., str]
) -> None:
    @tool
    def look(place: int) -> str:
        """Looks."""
        return "elsewhere"

    id = await begun(agent := Agent(model("a"), tools=[looking()]), store)
    (item,) = await refused(id, store, agent=agent.replace(tools=[look]))
    assert item == Item("tool", "look", "its arguments have changed")
    async with await AsyncConversation.open(
        id, agent=agent.replace(tools=[look]), allow={"tools"}, store=store
    ) as opened:
        assert opened.agent is not None
        assert opened.agent.tools == ()


async def test_a_turn_that_does_not_commit_changes_no_settings(store: str, model: Callable[..., str]) -> None:
    llm = LLM(model("a", Reply("x", fault=Fault("refused")), "b"), retries=Retries(attempts=1))
    id = await begun(Agent(llm, tools=[looking()]), store)
    before = await settings_of(id, store)
    async with await AsyncConversation.open(id, allow={"tools"}, store=store) as opened:
        with pytest.raises(TurnFailed):
            await opened.run("two")
        assert await settings_of(id, store) == before
        assert (await opened.retry()).text == "b", "what may be missing may be so for every turn of this object"
    assert b'"look"' not in bytes((await settings_of(id, store)).agent)


async def test_what_somebody_else_has_changed_meanwhile_is_not_overwritten(
    store: str, model: Callable[..., str]
) -> None:
    id = await begun(Agent(model("a"), tools=[looking()]), store)
    other = Agent(model("other"), instructions="Be another.")
    async with await AsyncConversation.open(id, allow={"tools"}, store=store) as opened:
        async with await AsyncConversation.open(id, bind=False, store=store) as elsewhere:
            await elsewhere.change_agent(other)
        assert (await opened.run("two")).text == "other"
    assert (await settings_of(id, store)).agent_json == other.to_json()


async def test_a_fork_of_it_goes_on_without_as_well(store: str, model: Callable[..., str]) -> None:
    id = await begun(Agent(model("a", "b", "c"), tools=[looking()]), store)
    async with await AsyncConversation.open(id, allow={"tools"}, store=store) as opened:
        async with await opened.fork(cache="inherit") as early:
            assert (await early.cache()).inherited_from == id
            assert (await early.run("two")).text == "b"
            assert (await early.cache()).dropped, "its prompts begin otherwise, so there is nothing to inherit"
        await opened.run("two")
        async with await opened.fork(cache="inherit") as late:
            assert late.agent is opened.agent
            assert (await late.cache()).inherited_from == id
    async with await AsyncConversation.open(early.id, store=store) as again:
        assert again.agent is not None
        assert again.agent.tools == ()


async def test_a_call_that_waits_for_a_tool_that_is_gone_is_answered_without_it(
    store: str, model: Callable[..., str]
) -> None:
    agent = Agent(model("a", Reply(calls=(ScriptedCall("look"),)), "Done."), tools=[looking()], approval="always")
    async with AsyncConversation(agent, store=store) as made:
        await made.run("one")
        assert (await made.run("two")).outcome == "awaiting_approval"
    before = await looked_at(made.id, store)
    await refused(made.id, store)
    assert await looked_at(made.id, store) == before
    async with await AsyncConversation.open(made.id, allow={"tools"}, store=store) as opened:
        await opened.open_turn()
        turn = await opened.approve()
        assert ([call.status for call in turn.calls], turn.text) == (["failed"], "Done.")
        assert (await opened.verify()).ok
    assert b'"look"' not in bytes((await settings_of(made.id, store)).agent)
    async with await AsyncConversation.open(made.id, store=store) as again:
        assert again.agent is not None
        assert again.agent.approval == "always"


# A policy, and a form.


async def test_a_policy_that_is_missing_is_never_weaker(store: str, model: Callable[..., str]) -> None:
    def asks(call: ToolCall, tool: Any) -> bool:
        return call.tool == "look"

    calls = Reply(calls=(ScriptedCall("listen"),))
    agent = Agent(model("a", calls, "b"), tools=[looking(), listening()], approval=asks)
    id = await begun(agent, store)
    given = agent.replace(approval="never")
    (item,) = await refused(id, store, agent=given)
    assert (item.kind, item.name) == ("approval", "asks")
    async with await AsyncConversation.open(id, agent=given, allow={"approval"}, store=store) as opened:
        turn = await opened.run("two")
        assert turn.outcome == "awaiting_approval", "it did not ask about this one before; now it asks about all"
        assert (await opened.approve()).text == "b"


async def test_without_its_form_an_answer_is_a_text(store: str, model: Callable[..., str]) -> None:
    @dataclass
    class Local:
        text: str

    id = await begun(Agent(model('{"text":"a"}', "plain"), output=Local), store)
    async with await AsyncConversation.open(id, allow={"output"}, store=store) as opened:
        turn = await opened.run("two")
        assert (turn.text, turn.output) == ("plain", None)


# Without its folder.


@pytest.mark.parametrize("becomes", ["gone", "a file", "a link to nowhere"])
async def test_a_folder_that_is_no_more_is_said_on_opening_and_before_every_turn(
    becomes: str, store: str, folder: Path, model: Callable[..., str]
) -> None:
    async with AsyncConversation(Agent(model("a", "b")), workspace=folder, store=store) as made:
        await made.run("one")
        remove(folder, becomes)
        before = await looked_at(made.id, store)
        items = await refused(made.id, store)
        assert [(item.kind, item.name) for item in items] == [("workspace", str(folder))]
        assert ("not a folder" in items[0].why) == (becomes == "a file")
        for refuses in (made.run("two"), made.run("two", key="k")):
            with pytest.raises(CannotResume) as error:
                await refuses
            assert error.value.items == items
        assert await looked_at(made.id, store) == before, "nothing has begun"
        assert (await made.ask("By the way?")).text == "b", "a side question needs no folder"
        if becomes != "gone":
            remove(folder)
        make(folder)
    async with await AsyncConversation.open(made.id, store=store) as again:
        assert again.workspace == folder


async def test_a_conversation_goes_on_without_its_folder_and_has_none_from_then_on(
    store: str, folder: Path, model: Callable[..., str]
) -> None:
    id = await begun(Agent(model("a", "b", "c")), store, workspace=folder)
    remove(folder)
    async with await AsyncConversation.open(id, allow={"workspace"}, store=store) as opened:
        assert opened.workspace is None
        assert (await settings_of(id, store)).workspace == str(folder)
        await opened.run("two")
        assert (await settings_of(id, store)).workspace is None
        assert (await opened.info()).workspace is None
        told = await opened.events(kinds=["settings_changed"])
    make(folder)
    async with await AsyncConversation.open(id, store=store) as again:
        assert again.workspace is None, "it was recorded"
        assert (await again.run("three")).text == "c"
        assert await again.events(kinds=["settings_changed"]) == told


async def test_a_folder_that_may_be_missing_and_is_there_stays(
    store: str, folder: Path, model: Callable[..., str]
) -> None:
    id = await begun(Agent(model("a", "b", "c")), store, workspace=folder)
    async with await AsyncConversation.open(id, allow={"workspace"}, store=store) as opened:
        await opened.run("two")
        assert (await settings_of(id, store)).workspace == str(folder)
        remove(folder)
        await opened.run("three")
        assert (await settings_of(id, store)).workspace is None


async def test_a_request_that_is_repeated_finds_its_turn_though_the_folder_is_gone(
    store: str, folder: Path, model: Callable[..., str]
) -> None:
    async with AsyncConversation(Agent(model("a", "b")), workspace=folder, store=store) as made:
        await made.run("one")
        turn = await made.run("two", key="k")
        remove(folder)
        assert (await made.run("two", key="k")).id == turn.id


async def test_a_turn_that_waits_is_not_touched_while_the_folder_is_missing(
    store: str, folder: Path, model: Callable[..., str]
) -> None:
    agent = Agent(model(Reply(calls=(ScriptedCall("look"),)), "Done."), tools=[looking()], approval="always")
    async with AsyncConversation(agent, workspace=folder, store=store) as made:
        waiting = await made.run("one")
        remove(folder)
        before = await looked_at(made.id, store)
        for act in (made.approve, made.deny, made.resume, made.retry):
            with pytest.raises(CannotResume):
                await act()
        assert await looked_at(made.id, store) == before
        make(folder)
        turn: Turn = await made.approve()
        assert (turn.id, turn.text) == (waiting.id, "Done.")


async def test_without_its_functions_a_conversation_needs_neither_folder_nor_model(
    store: str, folder: Path, model: Callable[..., str]
) -> None:
    id = await begun(Agent(model("a"), tools=[looking()]), store, workspace=folder)
    remove(folder)
    async with await AsyncConversation.open(id, bind=False, store=store) as opened:
        assert opened.workspace == folder
        assert await opened.events()
        async with await opened.fork() as fork, await opened.fork(agent=Agent("scripted/echo")) as other:
            assert await fork.events() == await opened.events()
            with pytest.raises(CannotResume, match="workspace"):
                await other.run("two")


# With another model.


async def test_another_model_is_an_item_and_if_it_may_be_the_one_that_answers(
    store: str, model: Callable[..., str]
) -> None:
    old, new = LLM(model("a"), temperature=0.5), LLM(model("b", "c"), temperature=0.25)
    id = await begun(Agent(old, tools=[], instructions="Be brief."), store)
    (item,) = await refused(id, store, agent=Agent(new))
    assert (item.kind, item.name) == ("model", old.model)
    assert new.model in item.why
    for allow in ({"model"}, {f"model:{old.model}"}):
        async with await AsyncConversation.open(id, agent=Agent(new), allow=allow, store=store) as opened:
            assert opened.agent is not None
            assert (opened.agent.llm, opened.agent.instructions) == (new, "Be brief."), "its model, and no more"
    async with await AsyncConversation.open(id, store=store) as opened:
        sent = (await opened.request()).body
    async with await AsyncConversation.open(id, agent=Agent(new), allow={"model"}, store=store) as opened:
        assert (await opened.request()).body == sent, "it was the other model that was asked"
        assert (await opened.ask("By the way?")).text == "b"
        assert (await opened.info()).model == old.model
        assert (await opened.run("two")).text == "c"
        assert (await opened.info()).model == new.model
    async with await AsyncConversation.open(id, store=store) as again:
        assert again.agent is not None
        assert again.agent.llm == new


@pytest.mark.parametrize(
    ("given", "is_other"),
    [
        (LLM("openai/a", base_url="http://127.0.0.1:9/v1"), False),
        (LLM("openai/a", base_url="http://127.0.0.1:9/v1", api="chat"), False),
        (LLM("openai/a", base_url="http://127.0.0.1:9/v1", temperature=1, api_key="k", max_tokens=9), False),
        (LLM("openai/a", base_url="http://127.0.0.1:9/v1", api="responses"), True),
        (LLM("openai/a", base_url="http://127.0.0.1:10/v1"), True),
        (LLM("openai/a"), True),
        (LLM("openai/b", base_url="http://127.0.0.1:9/v1"), True),
    ],
    ids=["the same", "its wire by name", "asked otherwise", "another wire", "another place", "no place", "another"],
)
async def test_a_model_is_another_by_its_name_its_place_or_its_wire(store: str, given: LLM, is_other: bool) -> None:
    stored = LLM("openai/a", base_url="http://127.0.0.1:9/v1", temperature=0.5)
    async with AsyncConversation("scripted/echo", store=store) as made:
        await made.run("one")
        await made.change_agent(Agent(stored))
    if is_other:
        (item,) = await refused(made.id, store, agent=Agent(given))
        assert (item.kind, item.name) == ("model", "openai/a")
        return
    async with await AsyncConversation.open(made.id, agent=Agent(given), store=store) as opened:
        assert opened.agent is not None
        assert opened.agent.llm.temperature == 0.5, "how it is asked is as it was"
        assert opened.agent.llm.key() == given.api_key


async def test_one_to_create_with_is_no_other_model(store: str, model: Callable[..., str]) -> None:
    id = await begun(Agent(model("a", "b")), store)
    async with await AsyncConversation.open(id, create="scripted/echo", store=store) as opened:
        assert (await opened.run("two")).text == "b"


# A sub-agent, and other days.


async def test_a_sub_agent_is_opened_by_the_same_rules_and_stays_what_it_is(
    store: str, folder: Path, model: Callable[..., str]
) -> None:
    parent = await begun(Agent(model("a")), store)
    of = SubAgentOf(parent, "/root/scout", "scout", 1, role="explorer", task="Look around.")
    settings = Settings.of(Agent(model("b"), tools=[looking()]), str(folder))
    settings = msgspec.structs.replace(settings, sub_agent=of)
    child = new_id()
    async with await open_store(store) as held:
        family = (await held.read(parent)).family
        new = NewConversation(
            id=child,
            family=family,
            settings=settings.to_json(),
            cache=own_identity(child).to_json(),
            lineage=Lineage("sub_agent", source=parent),
        )
        await held.create(new)
    remove(folder)
    items = await refused(child, store)
    assert [item.kind for item in items] == ["workspace", "tool"]
    async with await AsyncConversation.open(child, allow={"workspace", "tools"}, store=store) as opened:
        before = await opened.cache()
        assert (await opened.run("Go.")).text == "b"
        assert await opened.cache() == before
    now = await settings_of(child, store)
    assert (now.sub_agent, now.workspace) == (of, None)


@pytest.mark.parametrize(
    ("document", "missing"),
    [
        ({"llm": {"model": "scripted/echo"}}, None),
        ({"llm": {"model": "scripted/echo"}, "of_a_later_day": {"a": 1}}, None),
        ({"llm": {"model": "scripted/echo", "of_a_later_day": 1}}, "its agent cannot be read"),
        ({"llm": {"model": "scripted/echo"}, "limits": {"of_a_later_day": 1}}, "its agent cannot be read"),
        ({"llm": {"model": "scripted/echo"}, "approval": "of_a_later_day"}, "its agent cannot be read"),
        ({"llm": {"model": "later/echo"}}, "its agent cannot be read"),
        ([], "its agent cannot be read"),
    ],
    ids=["old", "newer", "newer model", "newer limits", "newer policy", "newer provider", "nothing of ours"],
)
async def test_a_document_of_another_version_is_read_or_refused_as_an_item(
    store: str, document: Any, missing: str | None
) -> None:
    id = new_id()
    text = msgspec.json.encode({"agent": document, "of_a_later_day": True}).decode()
    async with await open_store(store) as held:
        await held.create(NewConversation(id=id, settings=text, cache=own_identity(id).to_json()))
    if missing is None:
        async with await AsyncConversation.open(id, store=store) as opened:
            assert (await opened.run("Hello")).text == "You said: Hello"
            assert not await opened.events(kinds=["settings_changed"])
        assert (await looked_at(id, store))[3] == text, "what is not understood is kept as it is"
        return
    (item,) = await refused(id, store, allow={"tools", "output", "approval", "workspace", "model"})
    assert item.kind == "agent"
    assert str(item).startswith(missing)
    assert await looked_at(id, store), "it can be read all the same"


async def test_agents_within_an_agent_go_on_without_their_tools_too(store: str, model: Callable[..., str]) -> None:
    explorer = Agent("scripted/echo", tools=[looking(), listening()])
    agent = Agent(model("a", "b"), sub_agents=SubAgents(roles={"explorer": Role(agent=explorer)}))
    id = await begun(agent, store)
    items = await refused(id, store)
    assert [(item.kind, item.name) for item in items] == [("agent", "explorer"), ("agent", "explorer")]
    assert {"look", "listen"} == {word for item in items for word in ("look", "listen") if f"tool {word}:" in item.why}
    assert len(await refused(id, store, allow={"tool:look"})) == 1
    async with await AsyncConversation.open(id, allow={"tools"}, store=store) as opened:
        assert (await opened.run("two")).text == "b"
    async with await AsyncConversation.open(id, store=store) as again:
        assert again.agent is not None
        assert again.agent.sub_agents is not None
        within = again.agent.sub_agents.roles["explorer"].agent
        assert within is not None
        assert within.tools == ()
