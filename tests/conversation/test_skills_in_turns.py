"""Skills in conversations: activated once, by a message or a tool, kept over forks, and the same in a retry."""

import os
from pathlib import Path

import pytest
from tests.conversation.support.agents import agent_of, asks, call, kinds, messages_of, scripted
from tests.conversation.support.homes import Home
from tests.conversation.support.team import obedient, orders, spawn, wait

from forkpoint import Agent, AsyncConversation, Skill, TurnFailed, Window, tool
from forkpoint.events import SkillActivated
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.workspace import set_trust
from forkpoint.workspace.isolation import make

pytestmark = pytest.mark.anyio

DEPLOY = Skill("deploy", "Tag it first.", words=("deploy",))
SQL = Skill("sql", "Mind the indexes.", files=("*.sql",))


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(os.path.realpath(tmp_path)) / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder / "forkpoint"


@tool
def read(path: str) -> str:
    """Reads."""
    return "select 1"


def activated(events: object) -> list[str]:
    return [event.body.name for event in events if isinstance(event.body, SkillActivated)]  # type: ignore[attr-defined]


async def test_a_message_activates_a_skill_once_right_before_it(home: Home) -> None:
    agent = agent_of(["one", "two", "three"], skills=[DEPLOY, SQL])
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        first = await conversation.run("Deploy it!")
        second = await conversation.run("deploy it again")
        assert (activated(first.events), activated(second.events)) == (["deploy"], [])
        shown = kinds(first.events)
        assert shown.index("skill_activated") == shown.index("user_message") - 1
        fork = await conversation.fork()
        earlier = await conversation.fork(before=first.id)
        assert activated((await fork.run("deploy")).events) == []
        assert "Tag it first." in str((await earlier.request("deploy")).body)
        assert str((await fork.request("deploy")).body).count("Tag it first.") == 1


async def test_a_tool_that_touches_a_file_activates_a_skill_before_the_model_is_asked_again() -> None:
    heard: list[Heard] = []

    def answer(one: Heard) -> Reply:
        heard.append(one)
        return (
            asks(call("read", "c1", path="db/a.sql"), call("read", "c2", path="b.sql"))
            if len(heard) == 1
            else Reply("ok")
        )

    agent = agent_of(answer, tools=[read], skills=[SQL])
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn = await conversation.run("look")
        assert activated(turn.events) == ["sql"]
        roles = [message["role"] for message in messages_of(heard[1])]
        assert roles == ["user", "assistant", "tool", "tool", "user"]
        assert "Mind the indexes." in messages_of(heard[1])[-1]["content"]
        assert activated((await conversation.run("look")).events) == []


async def test_a_retry_begins_with_the_skills_of_the_failed_try_whatever_files_say_by_then(user: Path) -> None:
    skills = user / "skills"
    skills.mkdir(parents=True)
    (skills / "deploy.md").write_text("As it was.")
    bodies: list[str] = []

    def answer(heard: Heard) -> Reply:
        bodies.append(str(heard.body["messages"]))
        return Reply(fault=Fault("overloaded")) if len(bodies) == 1 else Reply("ok")

    async with AsyncConversation(agent_of(answer), store="memory:") as conversation:
        with pytest.raises(TurnFailed):
            await conversation.run("deploy")
        (skills / "deploy.md").write_text("As it is now, and longer.")
        (skills / "more.md").write_text("---\nwords: [deploy]\n---\nMore.")
        turn = await conversation.retry()
        assert bodies[0] == bodies[1]
        assert activated(turn.events) == ["deploy"]
        assert activated((await conversation.run("deploy")).events) == ["more"]


async def test_a_project_s_skills_and_agents_md_are_read_only_if_it_is_trusted(tmp_path: Path, user: Path) -> None:
    project = tmp_path / "project"
    (project / ".forkpoint" / "skills").mkdir(parents=True)
    (project / ".forkpoint" / "skills" / "deploy.md").write_text("Our own way.")
    (project / "AGENTS.md").write_text("Builds are started with make.")
    for trust in (None, "untrusted", "trusted"):
        set_trust(project, trust, user / "config.toml")
        heard: list[str] = []

        def answer(one: Heard, heard: list[str] = heard) -> Reply:
            heard.append(str(one.body))
            return Reply("ok")

        async with AsyncConversation(agent_of(answer), store="memory:", workspace=project) as conversation:
            await conversation.run("deploy")
        assert ("Our own way." in heard[0]) == (trust == "trusted")
        assert ("started with make" in heard[0]) == (trust == "trusted")


async def test_a_bad_file_fails_no_turn(user: Path) -> None:
    (user / "skills").mkdir(parents=True)
    with (user / "skills" / "huge.md").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    (user / "skills" / "odd.md").write_text("---\nname: [x\n---\n")
    async with AsyncConversation(agent_of(["ok"]), store="memory:") as conversation:
        assert activated((await conversation.run("huge odd")).events) == []


async def test_what_is_forgotten_does_not_take_a_skill_along_and_a_fork_made_before_has_it_where_it_was(
    home: Home,
) -> None:
    agent = agent_of(lambda heard: Reply("ok"), skills=[DEPLOY], condenser=Window(events=1000, keep=0.5))
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run("deploy")
        before = await conversation.fork()
        for n in range(3):
            await conversation.run(f"question {n}.")
        while await conversation.condense() is not None:
            pass
        for branch in (conversation, before, await conversation.fork()):
            assert activated((await branch.run("deploy")).events) == [], "it was said, and is still shown"
            assert str((await branch.request("deploy")).body).count("Tag it first.") == 1


async def test_a_skill_that_had_no_room_beside_a_summary_is_activated_when_it_is_called_for_again() -> None:
    long = Skill("long", "Mind it. " * 2000, words=("deploy",), files=("*.sql",))
    touch = asks(call("read", "c1", path="a.sql"))
    agent = agent_of(
        lambda heard: touch if messages_of(heard)[-1]["content"] == "look" else Reply("ok"),
        tools=[read],
        skills=[long],
        condenser=Window(events=1000, keep=0.1),
    )
    async with AsyncConversation(agent, store="memory:") as conversation:
        assert activated((await conversation.run("deploy")).events) == ["long"]
        for n in range(3):
            await conversation.run(f"question {n}.")
        assert await conversation.condense() is not None
        assert activated(await conversation.events()) == ["long"], "it is not said again"
        other = await conversation.fork()
        assert activated((await conversation.run("deploy")).events) == ["long"]
        assert activated((await conversation.run("deploy")).events) == []
        assert activated((await other.run("look")).events) == ["long"]
        assert activated((await other.run("look")).events) == []


async def test_a_sub_agent_that_sees_the_last_turns_has_the_skills_of_those_that_it_does_not_see() -> None:
    heard: dict[str, str] = {}

    def model(asked: Heard) -> Reply:
        heard.setdefault(asked.text, str(messages_of(asked)))
        return obedient(asked)

    async with AsyncConversation(
        Agent(scripted(model), sub_agents=True, skills=[DEPLOY, SQL]), store="memory:"
    ) as parent:
        for text in ("deploy it", "two", "look at a.sql"):
            await parent.run(text)
        await parent.run(
            orders([spawn("deploy with 1", fork=1), spawn("with 2", fork=2), spawn("deploy", fork="all")], [wait()])
        )
    for task in ("deploy with 1", "with 2", "deploy"):
        assert (heard[task].count("Tag it first."), heard[task].count("Mind the indexes.")) == (1, 1), task
    assert "deploy it" not in heard["deploy with 1"]
    assert heard["deploy with 1"].index("Mind the indexes.") < heard["deploy with 1"].index("look at a.sql")


async def test_in_a_folder_that_was_made_for_a_fork_the_project_s_own_files_count(
    tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(tmp_path / "workspaces"))
    project = tmp_path / "project"
    (project / ".forkpoint" / "skills").mkdir(parents=True)
    (project / ".forkpoint" / "skills" / "deploy.md").write_text("Our own way.")
    (project / "AGENTS.md").write_text("Builds are started with make.")
    set_trust(project, "trusted", user / "config.toml")
    made = Path(make("copy", project, "fork").path)
    (made / ".forkpoint" / "skills" / "deploy.md").write_text("Whatever the agent wrote.")
    (made / ".forkpoint" / "skills" / "more.md").write_text("---\nwords: [deploy]\n---\nMore of it.")
    (made / "AGENTS.md").write_text("Obey me.")
    heard: list[str] = []

    def answer(one: Heard) -> Reply:
        heard.append(str(one.body))
        return Reply("ok")

    async with AsyncConversation(agent_of(answer), store="memory:", workspace=made) as conversation:
        await conversation.run("deploy")
    assert ("Our own way." in heard[0], "started with make" in heard[0]) == (True, True)
    assert not any(text in heard[0] for text in ("Whatever", "More of it", "Obey me"))


async def test_the_skills_of_whoever_runs_a_server_are_not_told_to_its_tenants(home: Home, user: Path) -> None:
    (user / "skills").mkdir(parents=True)
    (user / "skills" / "mine.md").write_text("---\nwords: [deploy]\n---\nMine alone.\n")
    async with AsyncConversation(home.agent(agent_of(["one"])), store=home.store) as conversation:
        turn = await conversation.run("Deploy it!")
    assert activated(turn.events) == ([] if home.store.startswith("http") else ["mine"])
