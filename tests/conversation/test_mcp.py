"""MCP servers in conversations: what holds of any tool holds of theirs, wherever the conversation lives."""

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.agent.mcp.calling import fresh, is_there, odd, servers
from tests.conversation.support import other_process
from tests.conversation.support.agents import PATIENCE, agent_of, asks, call, results, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.team import obedient, orders, spawn, told, wait
from tests.conversation.support.tools import MODEL, steps

from forkpoint import Agent, AsyncConversation, McpServer, SubAgents, TurnFailed, tool
from forkpoint.agent.loop import MAY_HAVE_RUN
from forkpoint.agent.mcp import connect
from forkpoint.backend.messages import as_message
from forkpoint.engine.engine import Engine
from forkpoint.errors import BadSetting, McpFailed, TrustChanged
from forkpoint.events import ManifestChanged, Text
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.store import open_store
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.workspace import set_trust

pytestmark = pytest.mark.anyio

__all__ = ["servers"]  # a fixture


class Model:
    """A model that does what it is told, and which tools it was shown each time. It fails when it is to."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []
        self.fails = False

    def __call__(self, heard: Heard) -> Reply:
        self.shown.append([tool["function"]["name"] for tool in heard.body.get("tools", ())])
        if self.fails and heard.body["messages"][-1]["role"] == "tool":
            self.fails = False
            return Reply(fault=Fault("overloaded"))
        return obedient(heard)

    def agent(self, *servers: McpServer, **settings: Any) -> Agent:
        return Agent(scripted(self), mcp=servers, **settings)


async def changes(conversation: AsyncConversation) -> list[str]:
    """What the conversation says of how its prompts begin."""
    bodies = [event.body for event in await conversation.events()]
    return [body.reason or "" for body in bodies if isinstance(body, ManifestChanged)]


def counts(*ids: str) -> str:
    """A message that makes the model count, by one for each id."""
    return orders(*([call("odd__count", id)] for id in ids))


# Everything that a conversation does.


async def test_a_call_is_made_once_and_the_list_stays_over_forks_rewinds_resumptions_and_reopening(home: Home) -> None:
    model = Model()
    agent = model.agent(fresh(tools=["count"]))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        first = await conversation.run(counts("a"))
        assert first.text == "1"
        model.fails = True
        with pytest.raises(TurnFailed):
            await conversation.run(counts("b"))
        assert (await conversation.resume()).text == "2", "what was counted before it failed is not counted again"
        model.fails = True
        with pytest.raises(TurnFailed):
            await conversation.run(counts("c"))
        assert (await conversation.retry()).text == "4", "a retry begins from the start"
        fork = await conversation.fork(at=first.id)
        assert (await fork.run(counts("d"))).text == "5"
        await conversation.rewind(at=first.id)
        assert (await conversation.run(counts("e"))).text == "6"
        id = conversation.id
    again = await AsyncConversation.open(id, store=home.store)
    assert (await again.run(counts("f"))).text == "7", "it is the server that was there before"
    for one in (again, fork):
        assert await changes(one) == ["the first"]
        assert (await one.verify()).ok
    assert {tuple(names) for names in model.shown} == {("odd__count",)}
    await fork.close()
    await again.close()


async def test_a_list_that_changes_is_another_beginning_of_prompts_which_is_recorded(home: Home) -> None:
    model = Model()
    agent = model.agent(fresh())
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        first = await conversation.run("Hello")
        await conversation.run(orders([call("odd__change")], [call("odd__echo")]))
        assert not any("odd__added" in names for names in model.shown), "within a turn nothing changes"
        await conversation.run("More")
        assert "odd__added" in model.shown[-1]
        assert await changes(conversation) == ["the first", "changed: tool odd__added added"]
        earlier = await conversation.fork(at=first.id)
        await earlier.run("Hello")
        assert "odd__added" in model.shown[-1], "the server of today has the tools of today"
        assert await changes(earlier) == ["the first", "changed: tool odd__added added"]
        await earlier.close()


@tool
def odd__added() -> str:
    """Is the agent's own."""
    return "own"


async def test_a_new_list_that_clashes_with_another_tool_leaves_the_old_one_and_others_are_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Model()
    agent = model.agent(fresh(), fresh(name="two"), tools=[odd__added])
    async with AsyncConversation(agent, store="memory:") as conversation:
        await conversation.run(orders([call("odd__change"), call("two__change", "2")]))
        turn = await conversation.run(orders([call("odd__added"), call("odd__echo", "2")]))
        assert [result.status for result in results(turn.events)] == ["done", "done"]
        assert await changes(conversation) == ["the first", "changed: tool two__added added"]
    assert "the new list of the MCP server odd is not used" in caplog.text


async def test_a_server_that_dies_in_the_middle_of_a_turn_is_a_failed_result_and_the_turn_goes_on(home: Home) -> None:
    agent = Model().agent(odd())
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        turn = await conversation.run(orders([call("odd__die"), call("odd__echo")], [call("odd__echo", "last", x=3)]))
        assert (turn.outcome, turn.text) == ("committed", '{"x": 3}')
        died, _, last = results(turn.events)
        assert (died.status, last.status) == ("failed", "done")
        assert "ended with exit code 3. It may have done part of its work" in text_of(died.parts)


async def test_rubbish_floods_and_silence_are_failed_results_and_the_turn_goes_on() -> None:
    await connect(odd(name="hasty"))  # it is there, so that it has its short time for the call alone
    agent = Model().agent(odd(), odd(name="hasty", timeout=0.3, tools=["slow"]))
    names = ["odd__rubbish", "odd__huge", "hasty__slow", "odd__wrong_result", "odd__flood"]
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn = await conversation.run(orders(*([call(name)] for name in names), say="Done."))
        assert turn.text == "Done."
        assert [result.status for result in results(turn.events)] == ["failed", "failed", "failed", "failed", "done"]
        assert all(len(text_of(result.parts)) < 101_000 for result in results(turn.events))


async def test_a_server_that_cannot_be_reached_fails_the_first_turn_which_can_be_retried(
    home: Home, tmp_path: Path
) -> None:
    program = tmp_path / "server"
    agent = Model().agent(McpServer("late", command=[str(program)], tools=["echo"]))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run(orders([call("late__echo", x=1)]))
        assert failed.value.turn.error is not None
        assert failed.value.turn.error.code == McpFailed.code
        is_told = str(program) in str(failed.value)
        assert is_told == home.store.startswith("sqlite:"), "what a server starts is not told to its clients"
        assert await conversation.events() == []
        (command,) = [odd().command]
        program.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
        program.chmod(0o755)
        assert (await conversation.retry()).text == '{"x": 1}'


@pytest.mark.parametrize("fork", ["none", "all"])
async def test_a_sub_agent_has_its_parents_servers(home: Home, fork: str) -> None:
    model = Model()
    agent = model.agent(odd(tools=["count", "echo"]), sub_agents=SubAgents())
    task = orders([call("odd__echo", x=5)])
    async with AsyncConversation(home.agent(agent), store=home.store) as parent:
        turn = await parent.run(orders([spawn(task, fork=fork)], [wait()]))
        (done,) = told(turn.text)
        assert done["answer"] == '{"x": 5}'
        (member,) = await parent.list_agents()
        child = await AsyncConversation.open(member.conversation, store=home.store, bind=False)
        assert len(await changes(child)) == 1, "it begins with the list that its parent has"
        assert len({tuple(names) for names in model.shown}) == 1
        await child.close()


# Other processes.


async def test_a_call_whose_process_was_killed_has_an_unknown_end_and_is_not_made_again(tmp_path: Path) -> None:
    store, mark = f"sqlite:///{tmp_path}/a.db", tmp_path / "mark"
    async with AsyncConversation(Agent(MODEL, mcp=[odd()]), store=store) as conversation:
        await conversation.run("Hello")
        id = conversation.id
    process = other_process.start(store, id, "run", steps([("odd__stuck", {"file": str(mark)})]))
    try:
        with anyio.fail_after(PATIENCE):
            while not mark.exists() or not mark.read_text().endswith("\n"):  # noqa: ASYNC110
                await anyio.sleep(0.005)
    finally:
        process.kill()
        process.communicate()
    server = int(mark.read_text())
    mark.unlink()
    again = await AsyncConversation.open(id, store=store)
    turn = await again.resume()
    (result,) = results(turn.events)
    assert (result.status, text_of(result.parts)) == ("unknown", MAY_HAVE_RUN)
    assert not mark.exists(), "it was not made again"
    with anyio.fail_after(PATIENCE):
        while is_there(server):  # noqa: ASYNC110 - it ends when it is left alone
            await anyio.sleep(0.005)
    assert await changes(again) == ["the first"], "the other process went on with the same list"
    await again.close()


# Without a conversation.


async def test_an_answer_without_a_conversation_has_the_tools_too() -> None:
    async with await open_store("memory:") as store:
        backend = Engine(store, owns_store=False)
        agent = agent_of([asks(call("odd__echo", x=1)), "Done."], mcp=[odd()])
        turn = await backend.turns.once(agent, [as_message("Go")], identity=own_identity("beside"), tell=lambda _: None)
        assert turn.text == "Done."
        assert [result.status for result in results(turn.events)] == ["done"]
        gone = agent_of(["Done."], mcp=[McpServer("gone", command=["/no/such/program"])])
        with pytest.raises(McpFailed, match="'gone' cannot be started"):
            await backend.turns.once(gone, [as_message("Go")], identity=own_identity("beside"), tell=lambda _: None)
        await backend.close()


# A project's servers.


class Desk:
    """A user with a settings file, and a project that names a server."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "home" / "forkpoint" / "config.toml"
        self.project = folder / "project"
        (self.project / "tools").mkdir(parents=True)
        (self.project / ".git").mkdir()
        command = odd().command
        server = self.project / "tools" / "server"
        server.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
        server.chmod(0o755)
        self.names("[[mcp]]", 'name = "odd"', 'command = ["tools/server"]', 'tools = ["echo", "environment"]')

    def names(self, *lines: str) -> None:
        """What the project's own file says from now on."""
        file = self.project / ".forkpoint" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))

    def decided(self, trust: Any) -> None:
        assert set_trust(self.project, trust, self.config).warning is None


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(Path(os.path.realpath(tmp_path)))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(desk.config.parents[1]))
    return desk


async def test_a_trusted_projects_servers_are_there_for_as_long_as_it_is_trusted(desk: Desk, home: Home) -> None:
    model = Model()
    agent = model.agent(odd(name="own", tools=["pid"]))
    inside = desk.project / "tools"
    async with AsyncConversation(home.agent(agent), store=home.store, workspace=inside) as conversation:
        await conversation.run("Hello")
        assert model.shown[-1] == ["own__pid"], "of one that nobody has decided on nothing is read"
        desk.decided("trusted")
        turn = await conversation.run(orders([call("odd__environment")]))
        assert model.shown[-1] == ["odd__echo", "odd__environment", "own__pid"]
        assert f'"cwd": "{inside}"' in turn.text, "it starts where the conversation works"
        fork = await conversation.fork()
        await fork.run("Hello")
        desk.decided("untrusted")
        await conversation.run(orders([call("odd__echo")], say="No."))
        assert model.shown[-1] == ["own__pid"]
        assert [result.status for result in results(await conversation.events())] == ["done", "failed"]
        assert [one.partition(":")[0] for one in await changes(conversation)] == ["the first", "changed", "changed"]
        await fork.run("Hello")
        assert model.shown[-1] == ["own__pid"]
        await fork.close()


async def test_a_turn_that_goes_on_after_trust_was_withdrawn_starts_no_server_of_the_project(desk: Desk) -> None:
    desk.decided("trusted")
    agent = Model().agent(approval="risky")
    async with AsyncConversation(agent, store="memory:", workspace=desk.project) as conversation:
        waiting = await conversation.run(orders([call("odd__echo", x=1)], say="Done."))
        assert waiting.outcome == "awaiting_approval"
        desk.decided("untrusted")
        turn = await conversation.approve()
        assert turn.text == "Done."
        (result,) = results(turn.events)
        assert result.status == "failed"
        assert "no tool" in text_of(result.parts)


async def test_an_agents_own_server_comes_before_the_projects_of_that_name(desk: Desk) -> None:
    desk.decided("trusted")
    model = Model()
    agent = model.agent(odd(tools=["pid"]))
    async with AsyncConversation(agent, store="memory:", workspace=desk.project) as conversation:
        await conversation.run("Hello")
        assert model.shown[-1] == ["odd__pid"]


async def test_what_a_projects_file_says_of_servers_holds_from_the_next_turn_and_is_checked(desk: Desk) -> None:
    desk.decided("trusted")
    model = Model()
    async with AsyncConversation(model.agent(), store="memory:", workspace=desk.project) as conversation:
        await conversation.run("Hello")
        desk.names("[[mcp]]", 'name = "odd"', 'command = ["./tools/server"]', 'tools = ["pid"]')
        with pytest.raises(TrustChanged):
            await conversation.run("Hello")
        desk.decided("trusted")
        await conversation.run("Hello")
        assert model.shown[-1] == ["odd__pid"]
        desk.names("[[mcp]]", 'name = "odd"')
        with pytest.raises(TurnFailed, match="needs a command or a url") as failed:
            await conversation.run("Hello")
        assert isinstance(failed.value.cause, BadSetting)


def text_of(parts: Any) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))
