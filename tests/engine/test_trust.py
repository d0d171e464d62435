"""Trust in conversations: what it changes, where it is kept, and that a turn runs though it cannot be kept."""

import logging
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conversation.support.agents import agent_of, asks, call, messages_of, scripted

from forkpoint import Agent, AsyncConversation, Conversation, Tool, TurnFailed, tool
from forkpoint.backend.messages import as_message
from forkpoint.engine.engine import Engine
from forkpoint.engine.trust import Trusting
from forkpoint.errors import BadArgument, BadSetting
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.store import open_store
from forkpoint.testing import Heard, Reply
from forkpoint.workspace import set_trust, trust_of

pytestmark = pytest.mark.anyio

TOLD = "Builds are started with make."


class Desk:
    """A user with a settings file, and a project with settings of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.config = self.home / "forkpoint" / "config.toml"
        self.project = folder / "project"
        self.project.mkdir()
        self.store = f"sqlite:///{folder / 'forkpoint.db'}"
        self.sets(f'instructions = "{TOLD}"')

    def sets(self, *lines: str) -> None:
        """What the project's own file says from now on."""
        file = self.project / ".forkpoint" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))

    def says(self, text: str) -> None:
        """What the user's own file says from now on."""
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(text)

    def decided(self, trust: Any) -> None:
        assert set_trust(self.project, trust, self.config).warning is None

    @property
    def kept(self) -> str | None:
        """What the user's file says of the project."""
        if not self.config.exists():
            return None
        found = tomllib.loads(self.config.read_text()).get("projects", {}).get(str(self.project), {})
        return str(found["trust"]) if "trust" in found else None


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(Path(os.path.realpath(tmp_path)))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(desk.home))
    return desk


class Erasing:
    """An agent that calls a risky tool before it answers, and what that has erased."""

    def __init__(self) -> None:
        self.erased: list[str] = []

        @tool(risky=True)
        def erase(what: str) -> str:
            """Erases."""
            self.erased.append(what)
            return f"{what} is gone"

        self.tool: Tool = erase
        self._llm = scripted(self._answer)

    def agent(self, **settings: Any) -> Agent:
        return Agent(self._llm, tools=[self.tool], **settings)

    def _answer(self, heard: Heard) -> Reply:
        return Reply("Done.") if messages_of(heard)[-1]["role"] == "tool" else asks(call("erase", "c1", what="it"))


def system_of(heard: Heard) -> str:
    first = heard.body["messages"][0]
    return str(first["content"]) if first["role"] in {"system", "developer"} else ""


class Listener:
    """An agent that remembers what stood before each conversation."""

    def __init__(self, **settings: Any) -> None:
        self.systems: list[str] = []
        self.agent = Agent(scripted(self._answer), **{"instructions": "You help."} | settings)

    def _answer(self, heard: Heard) -> Reply:
        self.systems.append(system_of(heard))
        return Reply("Yes.")


# Places where nothing can be kept.


def read_only(desk: Desk) -> None:
    desk.says('# mine\nmodel = "openai/test"\n')
    desk.config.chmod(0o444)


def broken(desk: Desk) -> None:
    desk.says("[projects\nmodel = ")


def below_a_file(desk: Desk) -> None:
    desk.home.write_text("a file, and no folder: not even root can make one below")


def in_proc(desk: Desk) -> None:
    os.environ["XDG_CONFIG_HOME"] = "/proc/1/fdinfo"  # `desk` puts it back


UNWRITABLE = [read_only, broken, below_a_file, in_proc]


# What is kept.


async def test_a_conversation_that_trusts_its_project_keeps_that_with_its_first_turn_and_hears_the_project(
    desk: Desk,
) -> None:
    listener = Listener()
    async with AsyncConversation(listener.agent, workspace=desk.project, trust=True, store=desk.store) as one:
        await one.info()
        assert not desk.config.exists(), "making one does no I/O"
        await one.run("Hello")
        assert (desk.kept, one.trust_warning) == ("trusted", None)
        assert listener.systems == [f"You help.\n\n{TOLD}"]
    async with AsyncConversation(listener.agent, workspace=desk.project, store=desk.store) as another:
        await another.run("Hello")
        assert listener.systems[1] == listener.systems[0]  # nobody has to say it twice


async def test_what_a_project_tells_stays_as_it_was_when_the_conversation_was_made(desk: Desk) -> None:
    listener = Listener()
    desk.decided("trusted")
    async with AsyncConversation(
        listener.agent, workspace=desk.project, store=desk.store, conversation_id="one"
    ) as conversation:
        await conversation.run("Hello")
        desk.sets('instructions = "Builds are started with ninja."')
        await conversation.run("Again")
        assert conversation.agent is not None
        assert conversation.agent.instructions == f"You help.\n\n{TOLD}"
    desk.decided("untrusted")
    async with await AsyncConversation.open("one", agent=listener.agent, store=desk.store) as opened:
        await opened.run("And again")
    assert set(listener.systems) == {f"You help.\n\n{TOLD}"}
    assert len(listener.systems) == 3


async def test_an_already_trusted_project_is_not_written_again(desk: Desk) -> None:
    desk.decided("trusted")
    before = desk.config.stat()
    async with AsyncConversation(agent_of(["Yes."]), workspace=desk.project, trust=True, store=desk.store) as one:
        await one.run("Hello")
    after = desk.config.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_an_explicit_untrusted_is_not_overridden_and_the_warning_says_how_to_change_it(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.decided("untrusted")
    said = desk.config.read_bytes()
    erasing, listener = Erasing(), Listener()
    async with AsyncConversation(listener.agent, workspace=desk.project, trust=True, store=desk.store) as one:
        await one.run("Hello")
        assert listener.systems == ["You help."]
        assert one.trust_warning is not None
        assert f"forkpoint trust {desk.project}" in one.trust_warning
    async with AsyncConversation(erasing.agent(), workspace=desk.project, trust=True, store=desk.store) as two:
        assert (await two.run("Erase it")).outcome == "awaiting_approval"
    assert desk.config.read_bytes() == said
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert erasing.erased == []


async def test_untrusted_is_kept_likewise_and_makes_a_trusted_project_untrusted(desk: Desk) -> None:
    desk.decided("trusted")
    erasing = Erasing()
    async with AsyncConversation(erasing.agent(), workspace=desk.project, trust=False, store=desk.store) as one:
        assert (await one.run("Erase it")).outcome == "awaiting_approval"
    assert (desk.kept, erasing.erased) == ("untrusted", [])


async def test_a_policy_that_lets_nothing_run_does_not_make_a_project_trusted(desk: Desk) -> None:
    erasing, listener = Erasing(), Listener(approval="always")
    async with AsyncConversation(listener.agent, workspace=desk.project, store=desk.store) as one:
        await one.run("Hello")
    async with AsyncConversation(erasing.agent(), workspace=desk.project, store=desk.store) as two:
        assert (await two.run("Erase it")).outcome == "committed"  # undecided: the agent's own policy holds
    assert (desk.kept, listener.systems, erasing.erased) == (None, ["You help."], ["it"])


# What cannot be kept.


@pytest.mark.parametrize("spoil", UNWRITABLE)
async def test_a_turn_runs_though_trust_cannot_be_kept_and_goes_on_as_if_it_had_been(
    desk: Desk, spoil: Callable[[Desk], None], caplog: pytest.LogCaptureFixture
) -> None:
    spoil(desk)
    before = desk.config.read_bytes() if desk.config.is_file() else None
    listener = Listener()
    desk.sets(f'instructions = "{TOLD}"', 'approval = "always"')
    erasing = Erasing()
    async with AsyncConversation(listener.agent, workspace=desk.project, trust=True, store=desk.store) as one:
        assert (await one.run("Hello")).outcome == "committed"
        assert (await one.run("Again")).outcome == "committed"
        assert listener.systems == [f"You help.\n\n{TOLD}"] * 2, "its settings are those of a trusted project"
        assert one.trust_warning is not None
        assert str(desk.project) in one.trust_warning
        assert "trusted" in one.trust_warning
        assert [r.getMessage() for r in caplog.records].count(one.trust_warning) == 1
        await one.change_agent(erasing.agent())
        waits = await one.run("Erase it")
        assert waits.outcome == "awaiting_approval", "the project's own policy holds"
        await one.discard()
        fork = await one.fork(agent=erasing.agent())
        assert (await fork.run("Erase it")).outcome == "awaiting_approval", "its forks have its trust"
        other = AsyncConversation(erasing.agent(), workspace=desk.project, store=desk.store)
        assert (await other.run("Erase it")).outcome == "committed", "another conversation has not said anything"
        await other.close()
        await fork.close()
    assert (desk.config.read_bytes() if desk.config.is_file() else None) == before, "and the file is as it was"


@pytest.mark.parametrize("spoil", UNWRITABLE)
async def test_untrusted_holds_for_the_conversation_though_it_cannot_be_kept(
    desk: Desk, spoil: Callable[[Desk], None]
) -> None:
    spoil(desk)
    erasing = Erasing()
    async with AsyncConversation(erasing.agent(), workspace=desk.project, trust=False, store=desk.store) as one:
        assert (await one.run("Erase it")).outcome == "awaiting_approval"
        assert one.trust_warning is not None
        assert "untrusted" in one.trust_warning
    assert erasing.erased == []


async def test_a_file_that_breaks_while_it_runs_does_not_make_an_untrusted_project_less_so(desk: Desk) -> None:
    desk.decided("untrusted")
    erasing = Erasing()
    async with AsyncConversation(erasing.agent(), workspace=desk.project, store=desk.store) as one:
        await one.run("Erase it")
        desk.says("[projects")
        assert (await one.retry()).outcome == "awaiting_approval"
    assert erasing.erased == []


async def test_a_sub_agent_has_its_parents_trust_though_it_could_not_be_kept(desk: Desk) -> None:
    broken(desk)
    erasing = Erasing()
    agent = erasing.agent(sub_agents=True)
    async with AsyncConversation(agent, workspace=desk.project, trust=False, store=desk.store) as parent:
        await parent.run("Erase it")
        await parent.deny()
        child = await parent.spawn_agent("Erase it", agent=erasing.agent())
        assert (await child.run()).outcome == "awaiting_approval"
        await child.close()
    assert erasing.erased == []


# What it changes.


async def test_risky_tools_ask_first_in_an_untrusted_workspace_though_nothing_of_that_is_stored(desk: Desk) -> None:
    desk.decided("untrusted")
    erasing = Erasing()
    async with AsyncConversation(
        erasing.agent(), workspace=desk.project, store=desk.store, conversation_id="one"
    ) as conversation:
        waits = await conversation.run("Erase it")
        assert [one.reason for one in waits.waiting] == ["the tool is risky"]
        assert erasing.erased == []
        assert (await conversation.approve()).outcome == "committed"
        assert erasing.erased == ["it"]
    async with await AsyncConversation.open("one", agent=erasing.agent(), store=desk.store) as opened:
        assert opened.agent is not None
        assert opened.agent.approval == "never"


async def test_it_holds_for_whoever_retries_and_resumes(desk: Desk) -> None:
    erasing = Erasing()
    async with AsyncConversation(erasing.agent(), workspace=desk.project, store=desk.store) as one:
        desk.decided("untrusted")
        first = await one.run("Erase it")
        assert first.outcome == "awaiting_approval"
        again = await one.retry()
        assert again.outcome == "awaiting_approval"
        assert (await one.resume()).outcome == "awaiting_approval"
        assert erasing.erased == []


async def test_without_a_conversation_a_risky_call_is_denied_whatever_the_agent_does_unattended(desk: Desk) -> None:
    desk.decided("untrusted")
    erasing = Erasing()
    backend = Engine(await open_store("memory:"))
    try:
        for folder, erased in ((desk.project, []), (desk.home, ["it"])):
            agent = erasing.agent(unattended="run", approval="risky")
            given = [as_message("Erase it")]
            await backend.turns.once(agent, given, identity=own_identity("x"), workspace=folder, tell=lambda _: None)
            assert erasing.erased == erased
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("own", "project", "outcome"),
    [("never", "risky", "awaiting_approval"), ("risky", "never", "awaiting_approval"), ("never", "never", "committed")],
)
async def test_a_trusted_projects_policy_only_makes_stricter(desk: Desk, own: Any, project: str, outcome: str) -> None:
    desk.sets(f'approval = "{project}"')
    desk.decided("trusted")
    async with AsyncConversation(Erasing().agent(approval=own), workspace=desk.project, store=desk.store) as one:
        assert (await one.run("Erase it")).outcome == outcome


async def test_another_agent_that_takes_over_hears_the_project_too(desk: Desk) -> None:
    desk.decided("trusted")
    listener, judge = Listener(), Listener(instructions="You judge.")
    async with AsyncConversation(listener.agent, workspace=desk.project, store=desk.store) as one:
        await one.run("Hello")
        fork = await one.fork(agent=judge.agent)
        await fork.run("And?")
        await fork.close()
        await one.change_agent(judge.agent)
        await one.change_agent(judge.agent)  # changes nothing
        await one.run("And?")
        await one.run("And now?")
        assert judge.systems == [f"You judge.\n\n{TOLD}"] * 3
    draft = AsyncConversation(listener.agent, workspace=desk.project, store=desk.store)
    await draft.request("Hello")
    await draft.change_agent(judge.agent)
    await draft.run("Hello")
    await draft.close()
    assert judge.systems[3] == f"You judge.\n\n{TOLD}"


async def test_an_agent_whose_policy_has_no_import_path_hears_its_project_in_every_turn(desk: Desk) -> None:
    desk.decided("trusted")
    listener = Listener(approval=lambda _call, _tool: False)
    async with AsyncConversation(listener.agent, workspace=desk.project, store=desk.store) as one:
        await one.run("Hello")
        await one.run("Again")
    assert listener.systems == [f"You help.\n\n{TOLD}"] * 2


async def test_a_preview_shows_what_a_trusting_turn_would_send_and_keeps_nothing(desk: Desk) -> None:
    async with AsyncConversation(
        Listener().agent, workspace=desk.project, trust=True, store=desk.store
    ) as conversation:
        assert TOLD in (await conversation.request("Hello")).body
        assert not desk.config.exists()


async def test_a_trusted_projects_file_that_cannot_be_used_is_said_before_anything_is_made(desk: Desk) -> None:
    desk.decided("trusted")
    desk.sets("instructions = 7")
    async with AsyncConversation(Listener().agent, workspace=desk.project, store=desk.store) as one:
        with pytest.raises(BadSetting, match=r"config\.toml cannot be used: .* Correct it, and try again\."):
            await one.run("Hello")
        assert (await AsyncConversation.list(store=desk.store)).items == ()
        desk.sets(f'instructions = "{TOLD}"')
        await one.run("Hello")
        desk.sets("approval = 'sometimes'")
        with pytest.raises(TurnFailed) as failed:  # nobody knows what it asks for, so nothing runs
            await one.run("Again")
        assert isinstance(failed.value.cause, BadSetting)


# Who says it.


@pytest.mark.parametrize("trust", [True, False])
def test_trust_without_a_workspace_is_refused(trust: bool) -> None:
    with pytest.raises(BadArgument, match="workspace"):
        Conversation("scripted/echo", trust=trust, store="memory:")


def test_trust_that_is_neither_yes_nor_no_is_refused(desk: Desk) -> None:
    with pytest.raises(BadArgument, match="True, False or None"):
        Conversation("scripted/echo", workspace=desk.project, trust="yes", store="memory:")  # type: ignore[arg-type]


async def test_whoever_opens_a_conversation_can_say_it_and_opening_keeps_nothing(desk: Desk) -> None:
    erasing = Erasing()
    async with AsyncConversation(
        erasing.agent(), workspace=desk.project, store=desk.store, conversation_id="one"
    ) as conversation:
        await conversation.run("Erase it")
    erasing.erased.clear()
    async with await AsyncConversation.open("one", agent=erasing.agent(), trust=False, store=desk.store) as opened:
        await opened.turns()
        assert not desk.config.exists()
        assert (await opened.run("Erase it")).outcome == "awaiting_approval"
        assert desk.kept == "untrusted"
    async with AsyncConversation("scripted/echo", store=desk.store, conversation_id="nowhere") as nowhere:
        await nowhere.run("Hello")
    with pytest.raises(BadArgument, match="workspace"):
        await AsyncConversation.open("nowhere", trust=True, store=desk.store)


def test_the_conversation_without_await_says_it_too(desk: Desk) -> None:
    read_only(desk)
    with Conversation("scripted/echo", workspace=desk.project, trust=True, store=desk.store) as one:
        one.run("Hello")
        assert one.trust_warning is not None


# What a look costs.


def test_a_look_that_finds_nothing_new_gives_the_very_same_agent(desk: Desk) -> None:
    trusting, agent = Trusting(), Erasing().agent()
    assert trusting.strict(agent, desk.project) is agent
    desk.decided("untrusted")
    strict = trusting.strict(agent, desk.project)
    assert strict.approval == "risky"
    assert trusting.strict(agent, desk.project) is strict
    desk.decided(None)
    assert trusting.strict(agent, desk.project) is agent


def test_a_link_that_leads_elsewhere_now_has_the_trust_of_where_it_leads(desk: Desk) -> None:
    desk.decided("trusted")
    elsewhere = desk.project.parent / "elsewhere"
    elsewhere.mkdir()
    link = desk.project.parent / "link"
    link.symlink_to(desk.project)
    trusting = Trusting()
    assert trusting.of(link) == "trusted"
    link.unlink()
    link.symlink_to(elsewhere)
    assert trusting.of(link) == "undecided" == trust_of(link, desk.config)


def test_what_holds_for_a_whole_place_is_overridden_by_an_untrusted_of_one_family(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    broken(desk)
    trusting = Trusting()
    with caplog.at_level(logging.WARNING, "forkpoint"):
        assert trusting.keep(desk.project, True) is not None
    assert trusting.of(desk.project, "any family") == "trusted"
    assert trusting.keep(desk.project, False, "one family") is not None
    assert (trusting.of(desk.project, "one family"), trusting.of(desk.project, "another")) == ("untrusted", "trusted")
    desk.says(f'[projects."{desk.project}"]\ntrust = "untrusted"\n')
    assert trusting.of(desk.project, "another") == "untrusted"  # what the user's file says wins


def test_an_untrusted_that_could_not_be_kept_is_not_overridden_either(desk: Desk) -> None:
    broken(desk)
    trusting = Trusting()
    assert trusting.keep(desk.project, False, "one") is not None
    desk.says("")
    assert "it was said before" in (trusting.keep(desk.project, True, "one") or "")
    assert (trusting.of(desk.project, "one"), desk.kept) == ("untrusted", None)
    assert trusting.keep(desk.project, False, "one") is None
    assert (trusting.of(desk.project, "one"), desk.kept) == ("untrusted", "untrusted")


async def test_who_goes_on_without_an_untrusted_folder_takes_its_rule_along(desk: Desk) -> None:
    erasing = Erasing()
    async with AsyncConversation(erasing.agent(), workspace=desk.project, store=desk.store) as conversation:
        desk.decided("untrusted")
        waits = await conversation.run("Erase it.")
        assert waits.outcome == "awaiting_approval"
        await conversation.deny()
    shutil.rmtree(desk.project)
    again = await AsyncConversation.open(conversation.id, agent=erasing.agent(), store=desk.store, allow={"workspace"})
    async with again:
        for _ in range(2):
            assert (await again.run("Erase it.")).outcome == "awaiting_approval"
            await again.deny()
    assert erasing.erased == []


async def test_what_is_said_on_opening_holds_for_forks_and_sub_agents_made_from_there(desk: Desk) -> None:
    erasing = Erasing()
    async with AsyncConversation(erasing.agent(), workspace=desk.project, store=desk.store) as conversation:
        assert (await conversation.run("Erase it.")).outcome == "committed"
    again = await AsyncConversation.open(conversation.id, agent=erasing.agent(), store=desk.store, trust=False)
    async with again, await again.fork() as fork:
        assert (await fork.run("Erase it.")).outcome == "awaiting_approval"
    assert (desk.kept, erasing.erased) == ("untrusted", ["it"])
