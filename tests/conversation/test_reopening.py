"""Opened again: in another process, with other functions at hand, or with none.

What is stored is enough: a fork that somebody opens elsewhere has the same events, state, key, lineage and settings.
"""

import importlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.conversation.support.homes import Home

from forkpoint import LLM, Agent, AsyncConversation, AsyncConversations, Conversation, Limits, TurnFailed, tool
from forkpoint.errors import AlreadyExists, BadArgument, BadWorkspace, CannotResume, NoAgent, NotFound
from forkpoint.ids import new_id
from forkpoint.llm.key import Key
from forkpoint.llm.model import Retries
from forkpoint.testing import Fault, Reply, Script, ScriptedCall

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo")

TOOLBOX = '''
    """Tools, an answer's form and a policy, as a program has them in a module."""

    import dataclasses

    from forkpoint import ToolContext, tool


    @dataclasses.dataclass
    class Verdict:
        text: str


    @tool
    def remember(ctx: ToolContext, key: str, value: int) -> str:
        """Remembers a number."""
        ctx.state[key] = value
        return "remembered"


    @tool(risky=True, timeout=30)
    def deploy(stage: str) -> str:
        """Deploys."""
        return f"deployed to {stage}"


    def asks(call, tool):
        return tool.risky and "it is risky"


    def facts(conversation):
        """All that anybody can see of a conversation, as text."""
        import msgspec

        document = {
            "info": conversation.info(),
            "events": conversation.events(),
            "turns": conversation.turns().items,
            "state": conversation.agent_state(),
            "cache": conversation.cache(),
            "stats": conversation.stats(),
            "agent": conversation.agent.to_json(),
            "workspace": str(conversation.workspace),
            "title": conversation.title(),
            "tags": conversation.tags(),
            "status": conversation.status(),
        }
        return msgspec.json.encode(document).decode()
'''

READ = """
import json, sys
from forkpoint import Conversation
import toolbox

store, *names = sys.argv[1:]
told = {}
for name in names:
    with Conversation.open(name, store=store) as conversation:
        told[name] = toolbox.facts(conversation)
print(json.dumps(told))
"""

RUN = """
import json, sys
from forkpoint import Conversation

store, name, message = sys.argv[1:]
with Conversation.open(name, store=store) as conversation:
    turn = conversation.run(message)
    keys = [step.key for step in turn.steps]
    print(json.dumps({"id": turn.id, "text": turn.text, "keys": keys, "agent": conversation.agent.to_json()}))
"""

OPEN = """
import sys
from forkpoint import Conversation
from forkpoint.errors import CannotResume

store, name = sys.argv[1:]
try:
    Conversation.open(name, store=store)
except CannotResume as error:
    print(error.missing)
"""


@pytest.fixture
def toolbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of tools, importable here and, from that folder, in other processes."""
    (tmp_path / "toolbox.py").write_text(textwrap.dedent(TOOLBOX))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("toolbox")
    del sys.modules["toolbox"]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'forkpoint.db'}"


async def process(folder: Path, code: str, *args: str) -> str:
    """What another process prints."""
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-B", "-c", code, *args], cwd=folder, capture_output=True, text=True, timeout=60
        )
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def agent_of(toolbox: ModuleType, folder: Path) -> Agent:
    """An agent with a callable of every kind. Its model is a file, so that every process has it."""
    replies = [
        {"reasoning": "Worth it.", "calls": [{"tool": "remember", "arguments": '{"key": "a", "value": 1}'}]},
        {"text": '{"text":"Noted."}'},
    ]
    (folder / "script.json").write_text(json.dumps({"replies": replies, "repeat": True}))
    return Agent(
        f"scripted/{folder / 'script.json'}",
        instructions="Be brief.",
        tools=[toolbox.remember, toolbox.deploy],
        output=toolbox.Verdict,
        limits=Limits(steps=9),
        approval=toolbox.asks,
        name="builder",
    )


@pytest.fixture
async def family(toolbox: ModuleType, address: str, tmp_path: Path) -> AsyncIterator[dict[str, AsyncConversation]]:
    """A source and forks of it, each made in another way."""
    async with AsyncConversation(
        agent_of(toolbox, tmp_path), conversation_id="source", store=address, workspace=tmp_path, title="The source"
    ) as source:
        first = await source.run("one")
        await source.run("two")
        await source.update_state({"b": [1, 2]})
        family = {
            "source": source,
            "head": await source.fork(conversation_id="head", title="The fork", tags={"kind": "debug"}),
            "warm": await source.fork(conversation_id="warm", cache="inherit", reset_metrics=False),
            "earlier": await source.fork(conversation_id="earlier", at=first),
            "replaced": await source.fork(conversation_id="replaced", agent=ECHO, cache="inherit"),
        }
        await family["warm"].run("three")
        family["deeper"] = await family["warm"].fork(conversation_id="deeper", cache="inherit")
        aside = await family["deeper"].rewind(at=first)
        assert aside is not None
        family[aside.name] = aside
        yield family
        for conversation in family.values():
            await conversation.close()


# In another process.


async def test_a_fork_that_another_process_opens_is_the_same_in_everything(
    family: dict[str, AsyncConversation], toolbox: ModuleType, address: str, tmp_path: Path
) -> None:
    there = json.loads(await process(tmp_path, READ, address, *family))

    def here(name: str) -> str:
        with Conversation.open(name, store=address) as conversation:
            return str(toolbox.facts(conversation))

    for name, conversation in family.items():
        told = await anyio.to_thread.run_sync(here, name)
        assert json.loads(there[name]) == json.loads(told), name
        seen = json.loads(told)
        assert seen["events"], "there is something to be the same"
        assert seen["cache"]["key"] == (await conversation.cache()).key
        assert seen["state"] == await conversation.agent_state()
        assert conversation.agent is not None
        assert seen["agent"] == conversation.agent.to_json()
        assert seen["workspace"] == str(conversation.workspace) == str(tmp_path)
    lineages = {name: json.loads(told)["info"]["lineage"] for name, told in there.items()}
    assert lineages["head"]["source"] == lineages["warm"]["source"] == family["source"].id
    assert lineages["deeper"]["source"] == family["warm"].id
    assert [lineage["kind"] for lineage in lineages.values()] == ["root", *["fork"] * 5, "aside"]


async def test_a_fork_goes_on_in_another_process_with_its_tools_and_its_key(
    family: dict[str, AsyncConversation], address: str, tmp_path: Path
) -> None:
    warm, source = family["warm"], family["source"]
    before = await source.events()
    await warm.update_state({"a": 0})
    there = json.loads(await process(tmp_path, RUN, address, "warm", "four"))
    turn = await warm.turn(there["id"])
    assert (turn.text, [call.tool for call in turn.calls]) == (there["text"], ["remember"])
    assert await warm.agent_state() == {"a": 1, "b": [1, 2]}
    assert set(there["keys"]) == {(await source.cache()).key}, "it inherits, wherever it is opened"
    assert warm.agent is not None
    assert there["agent"] == warm.agent.to_json()
    assert await source.events() == before
    again = await warm.run("five")
    assert again.steps[0].key == there["keys"][0]
    assert (await warm.verify()).ok


async def test_a_conversation_whose_first_turn_failed_is_opened_and_tried_again(home: Home) -> None:
    replies = [Reply("", fault=Fault("overloaded")), Reply("Hello.")]
    agent = Agent(LLM(Script(replies).register("reopen-draft"), retries=Retries(attempts=1)))
    async with AsyncConversation(home.agent(agent), store=home.store) as source:
        with pytest.raises(TurnFailed):
            await source.run("one")
    async with await AsyncConversation.open(source.id, store=home.store) as again:
        assert (await again.retry()).text == "Hello."
        assert [turn.outcome for turn in (await again.turns()).items] == ["failed", "committed"]


# What is not there any more.


async def test_whatever_is_missing_or_has_changed_is_listed_before_anything_runs(
    family: dict[str, AsyncConversation], address: str, tmp_path: Path
) -> None:
    before = await family["head"].info(), await family["head"].turns()
    changed = textwrap.dedent(TOOLBOX)
    changed = changed.replace("key: str, value: int", "key: str, value: str").replace("def deploy", "def ship")
    changed = changed.replace("text: str", "text: int").replace("def asks", "def asks_no_more")
    (tmp_path / "toolbox.py").write_text(changed)
    for name in ("head", "earlier", "source"):
        listed = await process(tmp_path, OPEN, address, name)
        for item in (
            "tool remember: its arguments have changed",
            "tool deploy: toolbox:deploy cannot be imported",
            "output Verdict: its fields have changed",
            "approval policy asks: toolbox:asks cannot be imported",
        ):
            assert item in listed, f"of {name} it was not said that {item}"
    assert await process(tmp_path, OPEN, address, "replaced") == "", "a fork with another agent needs none of it"
    assert (await family["head"].info(), await family["head"].turns()) == before


async def test_a_missing_module_is_said_for_each_thing_that_was_in_it(
    family: dict[str, AsyncConversation], address: str, tmp_path: Path
) -> None:
    (tmp_path / "toolbox.py").rename(tmp_path / "gone.py")
    listed = await process(tmp_path, OPEN, address, "head")
    assert listed.count("No module named 'toolbox'") == 4
    for name in ("tool remember", "tool deploy", "output Verdict", "approval policy asks"):
        assert f"{name}: toolbox:" in listed


async def test_new_words_for_a_tool_are_no_reason_not_to_open(
    family: dict[str, AsyncConversation], address: str, tmp_path: Path
) -> None:
    words = textwrap.dedent(TOOLBOX).replace("Remembers a number.", "Remembers a number, for good.")
    (tmp_path / "toolbox.py").write_text(words)
    assert json.loads(await process(tmp_path, RUN, address, "head", "three"))["text"]
    reasons = [event.body.reason for event in await family["head"].events(kinds=["manifest_changed"])]  # type: ignore[union-attr]
    assert reasons == ["the first", "changed: tool remember changed"]


# With an agent, with one to create it with, and with none.


def local_agent(name: str, *, instructions: str = "Be brief.") -> Agent:
    """An agent whose tool is nowhere to be imported."""

    @tool
    def here() -> str:
        """Is here."""
        return "here"

    replies = [Reply(calls=(ScriptedCall("here"),)), Reply("Done.")]
    model = Script(replies, repeat=True).register(name)
    return Agent(model, instructions=instructions, tools=[here])


async def test_a_tool_that_cannot_be_imported_comes_from_the_agent_that_is_given(address: str) -> None:
    async with AsyncConversation(local_agent("reopen-given"), store=address) as source:
        await source.run("one")
        async with await source.fork() as fork:
            assert len(await fork.events()) > 0
    with pytest.raises(CannotResume, match="tool here: it has no import path"):
        await AsyncConversation.open(fork.id, store=address)
    given = local_agent("reopen-given", instructions="Be long.")
    async with await AsyncConversation.open(fork.id, agent=given, store=address) as again:
        assert again.agent is not None
        assert (again.agent.tools, again.agent.instructions) == (given.tools, "Be brief."), "its functions, no more"
        turn = await again.run("two")
        assert ([call.result for call in turn.calls], turn.text) == (["here"], "Done.")
        assert len(await again.events(kinds=["manifest_changed"])) == 1, "its prompts begin as they did"


async def test_an_agent_that_lacks_something_is_no_help(address: str) -> None:
    async with AsyncConversation(local_agent("reopen-lacking"), store=address) as source:
        await source.run("one")
    with pytest.raises(CannotResume, match="tool here"):
        await AsyncConversation.open(source.id, agent=ECHO, store=address)


async def test_a_literal_key_is_in_no_file_and_comes_from_the_agent_that_is_given(address: str, tmp_path: Path) -> None:
    secret = "sk-0123456789-never-written"
    keyed = Agent(LLM("openai/a-model", base_url="http://127.0.0.1:9/v1", api_key=secret))
    async with AsyncConversation(ECHO, store=address) as source:
        await source.run("one")
        async with await source.fork(agent=keyed) as fork:
            assert fork.agent is keyed
    written = contents(tmp_path)
    assert secret.encode() not in written
    assert b"a-model" in written
    async with await AsyncConversation.open(fork.id, store=address) as without:
        assert without.agent is not None
        assert without.agent.llm.key() is None
    async with await AsyncConversation.open(fork.id, agent=keyed, store=address) as again:
        assert again.agent is not None
        assert again.agent.llm.key() == Key(secret)


@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "by id"])
async def test_open_makes_what_is_not_there_and_opens_what_is(home: Home, by_name: bool) -> None:
    id = "the-one" if by_name else new_id()
    with pytest.raises(NotFound):
        await AsyncConversation.open(id, store=home.store)
    async with await AsyncConversation.open(id, create=home.agent(ECHO), store=home.store) as made:
        assert (made.name, made.agent, await made.events()) == (id, ECHO, [])
        listed = await AsyncConversation.list(store=home.store)
        assert [info.id for info in listed.items] == [made.id], "it is there, though nothing was said yet"
        await made.run("one")
        fork = await made.fork(conversation_id="fork")
        await fork.close()
    other = Agent(Script([]).register("reopen-other"))
    async with await AsyncConversation.open(id, create=home.agent(other), store=home.store) as opened:
        assert (opened.id, (await opened.run("Who?")).text) == (made.id, "You said: Who?"), "it has an agent already"
        assert len(await opened.events()) > 0
        with pytest.raises(AlreadyExists):
            async with AsyncConversation(home.agent(ECHO), conversation_id=id, store=home.store) as taken:
                await taken.run("one")
    async with await AsyncConversation.open("fork", create=home.agent(other), store=home.store) as opened:
        assert opened.id == fork.id


async def test_what_is_made_by_opening_has_its_title_tags_and_workspace(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (tmp_path / "link").symlink_to(here)
    store = tmp_path / "a.db"
    new: dict[str, Any] = {"workspace": here, "title": "Mine", "tags": {"kind": "ci"}}
    async with await AsyncConversation.open("one", create=ECHO, store=store, **new) as made:
        assert (made.workspace, await made.tags()) == (here, {"kind": "ci", "title": "Mine"})
        await made.run("hi")
    async with AsyncConversations(store) as conversations:
        again = await conversations.open(
            "one", create=ECHO, workspace=tmp_path / "link", title="Other", tags={"x": "y"}
        )
        assert (again.id, again.workspace) == (made.id, here)
        assert await again.tags() == {"kind": "ci", "title": "Mine"}, "they are for a new conversation"
        await again.close()
        with pytest.raises(BadWorkspace, check=BadWorkspace.workspace_differs.made) as refused:
            await conversations.open("one", create=ECHO, workspace=there)
        assert all(text in str(refused.value) for text in ("one", str(here), str(there)))
        async with await conversations.create(ECHO, conversation_id="nowhere"):
            pass
        with pytest.raises(BadWorkspace, match="no folder"):
            await conversations.open("nowhere", create=ECHO, workspace=here)


@pytest.mark.parametrize("given", [{"workspace": "."}, {"title": "Mine"}, {"tags": {"kind": "ci"}}], ids=str)
async def test_what_is_for_a_new_conversation_needs_an_agent_to_make_it(home: Home, given: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="create=") as refused:
        await AsyncConversation.open("one", store=home.store, **given)
    assert next(iter(given)) in refused.value.argument


async def test_nothing_is_made_by_opening_if_trust_has_no_folder(tmp_path: Path) -> None:
    store = tmp_path / "a.db"
    with pytest.raises(BadArgument, match="no workspace"):
        await AsyncConversation.open("one", create=ECHO, trust=True, store=store)
    assert (await AsyncConversation.list(store=store)).items == ()


async def test_the_title_and_tags_of_what_is_made_by_opening_reach_a_server(home: Home) -> None:
    tags = {"kind": "ci"}
    async with await AsyncConversation.open(
        "one", create=home.agent(ECHO), title="Mine", tags=tags, store=home.store
    ) as made:
        assert await made.tags() == {"kind": "ci", "title": "Mine"}


async def test_many_who_open_or_create_at_once_have_the_same_conversation(home: Home) -> None:
    opened: list[AsyncConversation] = []

    async def open() -> None:
        opened.append(await AsyncConversation.open("the-one", create=home.agent(ECHO), store=home.store))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(open)
    assert len(opened) == 8
    assert len({conversation.id for conversation in opened}) == 1
    for conversation in opened:
        await conversation.close()


async def test_without_its_functions_it_can_be_read_forked_and_rewound_but_not_run(address: str) -> None:
    async with AsyncConversation(local_agent("reopen-unbound"), store=address) as source:
        first = await source.run("one")
        await source.run("two")
        whole = await source.events()
    async with await AsyncConversation.open(source.id, bind=False, store=address) as unbound:
        assert (unbound.agent, await unbound.events()) == (None, whole)
        for refused in (unbound.run("three"), unbound.ask("By the way?"), unbound.request("three")):
            with pytest.raises(NoAgent, match="opened without its functions"):
                await refused
        assert await unbound.status() == "idle"
        async with await unbound.fork(at=first) as fork, await unbound.fork(agent=ECHO) as other:
            assert (fork.agent, await fork.events()) == (None, list(first.events))
            assert (await other.run("three")).text == "You said: three"
            with pytest.raises(NoAgent):
                await fork.run("three")
        aside = await unbound.rewind(at=first)
        assert aside is not None
        assert (await aside.events(), await unbound.events()) == (whole, list(first.events))
        await unbound.change_agent(ECHO)
        assert (await unbound.run("two")).text == "You said: two"
        await aside.close()
    given = local_agent("reopen-unbound")
    async with await AsyncConversation.open(fork.id, agent=given, store=address) as again:
        assert (await again.run("four")).text == "Done.", "the fork is stored with the agent that nobody had at hand"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="which files are open is read there")
async def test_what_cannot_be_opened_holds_nothing_open(address: str, tmp_path: Path) -> None:
    async with AsyncConversation(local_agent("reopen-holding"), store=address) as source:
        await source.run("one")
    for options in ({}, {"agent": ECHO}):
        arguments: dict[str, Any] = options
        with pytest.raises(CannotResume):
            await AsyncConversation.open(source.id, store=address, **arguments)
    with pytest.raises(NotFound):
        await AsyncConversation.open("nobody", store=address)
    assert not files_held(tmp_path)


def contents(folder: Path) -> bytes:
    """All bytes of the store's files."""
    return b"".join(path.read_bytes() for path in folder.glob("forkpoint.db*") if path.is_file())


def files_held(folder: Path) -> list[str]:
    """Which files of a folder this process has open."""
    held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [path for path in held if path.startswith(str(folder))]
