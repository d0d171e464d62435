"""Trust is of content: what a project runs is run only if it is what was approved."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.agent.mcp.calling import odd, servers
from tests.conversation.support.agents import call, results, scripted
from tests.conversation.support.team import obedient, orders, spawn, wait

from forkpoint import Agent, AsyncConversation, TurnFailed
from forkpoint.agent.builtin import TOOLS
from forkpoint.backend.messages import as_message
from forkpoint.engine.engine import Engine
from forkpoint.errors import BadSetting, TrustChanged
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.store import open_store
from forkpoint.testing import Heard, Reply
from forkpoint.testing.samples import remembers
from forkpoint.workspace import set_trust, standing
from forkpoint.workspace.pins.pins import pinned_at

pytestmark = pytest.mark.anyio

__all__ = ["servers"]  # a fixture

GUARD = "#!/bin/sh\necho guard >> ran\nexit 0\n"
OPEN = "#!/bin/sh\necho open >> ran\nexit 0\n"
HOOK = ("[[hooks]]", 'moment = "before_tool"', 'command = ["tools/guard.sh"]', 'on_error = "block"')


class Desk:
    """A user with a settings file, and a project with a guard whose script an agent may write to."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "home" / "forkpoint" / "config.toml"
        self.project = folder / "project"
        self.guard = self.project / "tools" / "guard.sh"
        (self.project / ".forkpoint").mkdir(parents=True)
        (self.project / ".git").mkdir()
        self.guard.parent.mkdir()
        self.writes(GUARD)
        self.sets(*HOOK)
        self.asked = 0

    def writes(self, text: str) -> None:
        self.guard.write_text(text)
        self.guard.chmod(0o755)

    def sets(self, *lines: str) -> None:
        (self.project / ".forkpoint" / "config.toml").write_text("".join(f"{line}\n" for line in lines))

    def trusts(self) -> None:
        assert set_trust(self.project, "trusted", self.config).warning is None

    @property
    def digest(self) -> str:
        return pinned_at(self.project).digest

    @property
    def ran(self) -> list[str]:
        """What hooks have written."""
        file = self.project / "ran"
        return file.read_text().split() if file.exists() else []

    def agent(self, **settings: Any) -> Agent:
        def answer(heard: Heard) -> Reply:
            self.asked += 1
            return obedient(heard)

        return Agent(scripted(answer), **{"tools": TOOLS} | settings)

    def conversation(self, **options: Any) -> AsyncConversation:
        agent = options.pop("agent", None) or self.agent()
        return AsyncConversation(agent, workspace=self.project, **{"store": "memory:"} | options)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(Path(os.path.realpath(tmp_path)))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(desk.config.parents[1]))
    return desk


def commit(folder: Path) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder))
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)


def add_worktree(project: Path, folder: Path) -> None:
    subprocess.run(["git", "-C", project, "worktree", "add", "-q", folder], check=True)


def shell(command: str, id: str = "s") -> Any:
    return call("shell", id, command=command)


# Before anything runs.


@pytest.mark.parametrize("change", ["script", "settings", "taken away"])
async def test_a_turn_in_a_project_that_changed_is_refused_before_anything_runs(desk: Desk, change: str) -> None:
    desk.trusts()
    async with desk.conversation() as talk:
        await talk.run(orders([shell("true")], say="Done."))
        assert desk.ran == ["guard"]
        asked = desk.asked
        match change:
            case "script":
                desk.writes(OPEN)
            case "settings":
                desk.sets(*HOOK[:-1], 'on_error = "ignore"')
            case _:
                desk.sets('instructions = "no guard any more"')
        with pytest.raises(TrustChanged) as refused:
            await talk.run("Go on")
        assert (desk.asked, desk.ran) == (asked, ["guard"])
        named = {"script": "tools/guard.sh changed", "settings": "`hooks` in its settings changed"}
        assert named.get(change, "`hooks` in its settings, tools/guard.sh changed") in str(refused.value)
        assert f"forkpoint trust {desk.project} --trust-digest {desk.digest}" in str(refused.value)
        assert len((await talk.turns()).items) == 1, "no turn was begun"
        with pytest.raises(TrustChanged):
            await talk.ask("And aside?")
        with pytest.raises(TrustChanged):
            await desk.conversation(store="memory:").run("A new one")
        desk.trusts()
        assert (await talk.run("Go on")).outcome == "committed"


async def test_what_was_approved_once_is_approved_when_it_comes_back(desk: Desk) -> None:
    desk.trusts()
    desk.writes(OPEN)
    desk.trusts()
    assert len(standing(desk.project, desk.config).pinned) == 2
    async with desk.conversation() as talk:
        for script, word in ((GUARD, "guard"), (OPEN, "open"), (GUARD, "guard")):
            desk.writes(script)
            await talk.run(orders([shell("true")], say="Done."))
            assert desk.ran[-1] == word


async def test_a_retry_a_resumption_and_an_approval_are_refused_too_and_leave_the_turn_as_it_was(desk: Desk) -> None:
    desk.sets(*HOOK, "", 'name = "guard"')
    desk.trusts()
    async with desk.conversation(agent=desk.agent(approval="always")) as talk:
        waiting = await talk.run(orders([shell("echo done >> ran")], say="Done."))
        assert waiting.outcome == "awaiting_approval"
        desk.writes(OPEN)
        for verb in (talk.approve, talk.resume, talk.deny, talk.retry):
            with pytest.raises(TrustChanged):
                await verb()
        assert (await talk.turn(waiting.id)).outcome == "awaiting_approval"
        desk.writes(GUARD)
        assert (await talk.approve()).outcome == "committed"
        assert desk.ran[-1] == "done"
        await talk.run(orders([shell("true")]))
        desk.writes(OPEN)
        with pytest.raises(TrustChanged):
            await talk.retry()


async def test_a_project_that_was_trusted_before_anything_was_pinned_is_asked_about_once(desk: Desk) -> None:
    desk.config.parent.mkdir(parents=True)
    desk.config.write_text(f'[projects."{desk.project}"]\ntrust = "trusted"\n')
    async with desk.conversation() as talk:
        with pytest.raises(TrustChanged, match="nothing of this was approved yet: hooks"):
            await talk.run("Hello")
    desk.sets('instructions = "Only prose."')
    async with desk.conversation() as talk:
        assert (await talk.run("Hello")).outcome == "committed", "it runs nothing, so nothing changes for it"


async def test_prose_goes_with_the_projects_trust(desk: Desk) -> None:
    desk.trusts()
    desk.sets('instructions = "Another text."', *HOOK)
    (desk.project / "AGENTS.md").write_text("And this.")
    async with desk.conversation() as talk:
        assert (await talk.run("Hello")).outcome == "committed"
        assert talk.agent is not None
        assert "Another text." in talk.agent.instructions


# Within a turn.


async def test_a_shell_call_that_writes_a_hook_does_not_make_it_run_in_the_next_turn(desk: Desk) -> None:
    desk.sets('instructions = "Nothing runs here."')
    desk.trusts()
    hook = '[[hooks]]\\nmoment = "turn_start"\\ncommand = "echo evil >> ran"\\n'
    async with desk.conversation(agent=desk.agent(approval="risky")) as talk:
        await talk.run(orders([shell(f"printf '{hook}' >> .forkpoint/config.toml")], say="Done."))
        assert (await talk.approve()).outcome == "committed"
        asked = desk.asked
        with pytest.raises(TrustChanged, match="`hooks` in its settings"):
            await talk.run("Go on")
        assert (desk.ran, desk.asked) == ([], asked)


@pytest.mark.parametrize("tool", ["write_file", "edit_file", "shell"])
async def test_a_guard_whose_script_a_call_rewrites_is_not_run_any_more_and_the_turn_fails(
    desk: Desk, tool: str
) -> None:
    desk.trusts()
    rewrites = {
        "write_file": call("write_file", "w", path="tools/guard.sh", content=OPEN),
        "edit_file": call("edit_file", "w", path="tools/guard.sh", old="echo guard", new="echo open"),
        "shell": shell("sed -i s/guard/open/ tools/guard.sh", "w"),
    }
    async with desk.conversation() as talk:
        await talk.run(orders([call("read_file", "r", path="tools/guard.sh")], say="Read."))
        with pytest.raises(TurnFailed) as failed:
            await talk.run(orders([rewrites[tool]], [shell("echo harm >> ran", "h")], say="Done."))
        assert isinstance(failed.value.cause, TrustChanged)
        assert "echo open" in desk.guard.read_text(), "the call itself was let through by the guard that there was"
        assert desk.ran == ["guard", "guard"]
        assert [one.status for one in results(failed.value.turn.events)] == ["done", "not_run"]
        with pytest.raises(TrustChanged):
            await talk.resume()
        desk.writes(GUARD)
        assert (await talk.resume()).outcome == "committed"
        assert "harm" not in desk.ran, "what was not run is told to the model, and not run later"


async def test_a_hook_that_is_changed_while_it_runs_is_not_believed(desk: Desk) -> None:
    desk.writes("#!/bin/sh\necho guard >> ran\necho >> tools/guard.sh\nexit 0\n")
    desk.trusts()
    async with desk.conversation() as talk:
        with pytest.raises(TurnFailed) as failed:
            await talk.run(orders([shell("echo harm >> ran")], say="Done."))
        assert isinstance(failed.value.cause, TrustChanged)
        assert desk.ran == ["guard"]


async def test_a_server_of_the_project_is_not_started_from_a_changed_file_nor_called(desk: Desk, servers: None) -> None:
    server = desk.project / "tools" / "server"
    content = f"#!/bin/sh\nexec {' '.join(odd().command)}\n"
    server.write_text(content)
    server.chmod(0o755)
    desk.sets("[[mcp]]", 'name = "odd"', 'command = ["tools/server"]', 'tools = ["echo", "pid"]')
    desk.trusts()
    async with desk.conversation() as talk:
        first = await talk.run(orders([call("odd__pid", "p")], say="Done."))
        assert [one.status for one in results(first.events)] == ["done"]
        harm = "#!/bin/sh\ntouch ran\n"
        with pytest.raises(TurnFailed) as failed:
            await talk.run(
                orders([call("write_file", "w", path="tools/server", content=harm)], [call("odd__pid", "p")])
            )
        assert isinstance(failed.value.cause, TrustChanged)
        assert [one.status for one in results(failed.value.turn.events)] == ["done", "not_run"]
        with pytest.raises(TrustChanged):
            await talk.run("Go on")
    async with desk.conversation() as other:
        with pytest.raises(TrustChanged):
            await other.run("Hello")
    assert desk.ran == []


# Everywhere.


async def test_a_sub_agent_is_refused_as_its_parent_would_be(desk: Desk) -> None:
    desk.trusts()
    async with desk.conversation(agent=desk.agent(sub_agents=True)) as parent:
        await parent.run("Hello")
        child = await parent.spawn_agent("Work", agent=desk.agent())
        desk.writes(OPEN)
        with pytest.raises(TrustChanged):
            await child.run()
        await child.close()
        desk.writes(GUARD)
        task = orders([call("write_file", "w", path="tools/guard.sh", content=OPEN)], [shell("echo harm >> ran")])
        with pytest.raises(TurnFailed) as failed:
            await parent.run(orders([spawn(task, nickname="h")], [wait()], [shell("echo harm >> ran", "z")]))
        assert isinstance(failed.value.cause, TrustChanged)
    assert "harm" not in desk.ran


async def test_an_answer_that_is_not_kept_is_refused_too(desk: Desk) -> None:
    desk.trusts()
    desk.writes(OPEN)
    backend = Engine(await open_store("memory:"))
    try:
        with pytest.raises(TrustChanged):
            await backend.turns.once(
                desk.agent(),
                [as_message("Hello")],
                identity=own_identity("x"),
                workspace=desk.project,
                tell=lambda _: None,
            )
    finally:
        await backend.close()
    assert (desk.asked, desk.ran) == (0, [])


@pytest.mark.parametrize("kind", ["copy", "worktree"])
async def test_a_folder_made_for_a_fork_runs_no_other_file_under_a_pinned_name(
    desk: Desk, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk.project / ".git").rmdir()
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(desk.config.parents[2] / "made"))
    desk.sets(*HOOK[:2], 'command = ["sh", "tools/guard.sh"]')  # in the folder that it runs in
    commit(desk.project)
    desk.trusts()
    async with desk.conversation() as talk:
        await talk.run("Hello")
        fork = await talk.fork(workspace=kind)
        assert fork.workspace is not None
        assert (await fork.run(orders([shell("true")], say="Done."))).outcome == "committed"
        with pytest.raises(TurnFailed) as failed:
            await fork.run(orders([shell("sed -i s/guard/open/ tools/guard.sh", "w")], [shell("true")]))
        assert isinstance(failed.value.cause, TrustChanged)
        with pytest.raises(TrustChanged, match=str(fork.workspace)):
            await fork.run("Go on")
        assert (await talk.run(orders([shell("true")], say="Done."))).outcome == "committed", "its source is as it was"
        await fork.close()


async def test_a_fork_does_not_go_on_without_a_guard_that_was_taken_out_of_its_own_folder(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk.project / ".git").rmdir()
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(desk.config.parents[2] / "made"))
    desk.sets(*HOOK[:2], 'command = ["bash", "tools/guard.sh"]')  # bash fails without it, and a failure is ignored
    commit(desk.project)
    desk.trusts()
    async with desk.conversation() as talk:
        await talk.run("Hello")
        fork = await talk.fork(workspace="worktree")
        with pytest.raises(TurnFailed) as failed:
            await fork.run(orders([shell("rm -r tools", "w")], [shell("echo harm >> ran")]))
        assert isinstance(failed.value.cause, TrustChanged)
        with pytest.raises(TrustChanged, match=r"tools/guard\.sh changed"):
            await fork.run(orders([shell("echo harm >> ran")]))
        assert fork.workspace is not None
        assert "harm" not in (fork.workspace / "ran").read_text()
        await fork.close()


# Who approves.


async def test_trust_given_in_python_covers_what_is_there_at_that_moment(desk: Desk) -> None:
    async with desk.conversation(trust=True) as talk:
        await talk.run(orders([shell("true")], say="Done."))
        assert standing(desk.project, desk.config).pinned == (desk.digest,)
        desk.writes(OPEN)
        with pytest.raises(TrustChanged):
            await talk.run("Go on")
    async with desk.conversation(trust=True) as again:
        assert (await again.run("Go on")).outcome == "committed"
        assert len(standing(desk.project, desk.config).pinned) == 2


async def test_trust_given_when_a_conversation_is_opened_covers_what_is_there_then(desk: Desk) -> None:
    desk.trusts()
    async with await open_store("memory:") as store:
        async with desk.conversation(store=store, conversation_id="one") as talk:
            await talk.run("Hello")
        desk.writes(OPEN)
        async with await AsyncConversation.open("one", agent=talk.agent, store=store, trust=True) as opened:
            assert (await opened.run(orders([shell("true")], say="Done."))).outcome == "committed"
    assert desk.ran == ["open"]
    assert len(standing(desk.project, desk.config).pinned) == 2


async def test_trust_that_cannot_be_kept_covers_the_same_and_no_later_content(desk: Desk) -> None:
    desk.config.parent.mkdir(parents=True)
    desk.config.write_text("# mine\n")
    desk.config.chmod(0o444)
    async with desk.conversation(trust=True) as talk:
        await talk.run(orders([shell("true")], say="Done."))
        assert talk.trust_warning is not None
        assert desk.ran == ["guard"]
        desk.writes(OPEN)
        with pytest.raises(TrustChanged):
            await talk.run("Go on")
    assert desk.config.read_text() == "# mine\n"


async def test_the_environment_approves_a_digest_and_nothing_is_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKPOINT_TRUST_DIGEST", f"sha256:{'0' * 64} {desk.digest}")
    async with desk.conversation() as talk:
        await talk.run(orders([shell("true")], say="Done."))
        assert desk.ran == ["guard"]
        desk.writes(OPEN)
        with pytest.raises(TrustChanged, match="nobody trusts what is there now"):
            await talk.run("Go on")
        assert desk.ran == ["guard"]
    async with desk.conversation() as talk:
        await talk.run("Hello")  # a new conversation never had the guard: the project is undecided, as any other
        assert desk.ran == ["guard"]
    assert not desk.config.exists()
    desk.writes(GUARD)
    assert set_trust(desk.project, "untrusted", desk.config).written
    async with desk.conversation() as talk:
        assert (await talk.run(orders([shell("true")]))).outcome == "awaiting_approval"


async def test_digests_of_other_projects_in_the_environment_do_not_refuse_a_project_that_runs_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.sets('instructions = "Be brief."')
    desk.trusts()
    monkeypatch.setenv("FORKPOINT_TRUST_DIGEST", f"sha256:{'0' * 64}")
    async with desk.conversation() as talk:
        await talk.run("Hello")
        desk.sets(*HOOK)
        with pytest.raises(TrustChanged):
            await talk.run("Go on")
        desk.trusts()
        await talk.run("Go on")
        desk.sets('instructions = "no guard any more"')
        with pytest.raises(TrustChanged):  # of this project something was approved, so nothing is another content
            await talk.run("Go on")


async def test_an_unsafe_settings_file_of_the_user_or_the_project_is_refused(desk: Desk) -> None:
    desk.trusts()
    desk.config.chmod(0o666)
    async with desk.conversation() as talk:
        with pytest.raises(BadSetting, match=f"chmod go-w {desk.config}"):
            await talk.run("Hello")
        desk.config.chmod(0o600)
        settings = desk.project / ".forkpoint" / "config.toml"
        settings.chmod(0o646)
        with pytest.raises(BadSetting, match=f"chmod go-w {settings}") as refused:
            await talk.run("Hello")
        assert refused.value.code == "unsafe_settings"
        settings.chmod(0o644)
        assert (await talk.run("Hello")).outcome == "committed"
        assert desk.ran == []


# The guards that were there.


@pytest.mark.parametrize("loses", ["a repository inside", "a link", "the user's file", "the worktree's link"])
async def test_a_folder_that_leaves_its_guarded_project_is_refused_and_does_not_go_on_without_guards(
    desk: Desk, tmp_path: Path, loses: str
) -> None:
    inner, other = desk.project / "inner", tmp_path / "other"
    inner.mkdir()
    other.mkdir()
    folder, command = {
        "a repository inside": (inner, "mkdir .git"),
        "a link": (tmp_path / "link", f"ln -sfn {other} {tmp_path}/link"),
        "the user's file": (desk.project, f"rm {desk.config}"),
        "the worktree's link": (tmp_path / "tree", "rm .git"),
    }[loses]
    (tmp_path / "link").symlink_to(desk.project)
    shutil.rmtree(desk.project / ".git")
    commit(desk.project)
    add_worktree(desk.project, tmp_path / "tree")
    desk.trusts()
    async with AsyncConversation(desk.agent(), workspace=folder, store="memory:") as talk:
        await talk.run(orders([shell(command)], say="Done."))
        asked = desk.asked
        with pytest.raises(TrustChanged) as refused:
            await talk.run(orders([shell("touch unguarded")], say="Done."))
        assert desk.asked == asked, "the model was asked"
        assert refused.value.project == str(desk.project)
        with pytest.raises(TrustChanged):
            await talk.ask("And aside?")
        async with await talk.fork() as fork:
            with pytest.raises(TrustChanged):
                await fork.run("In a fork")
        set_trust(folder, "untrusted", desk.config)  # a decision is one: risky tools ask now
        assert (await talk.run(orders([shell("true")], say="Done."))).outcome == "awaiting_approval"


async def test_one_turn_does_not_lose_its_guards_by_what_its_own_calls_did(desk: Desk) -> None:
    desk.sets('approval = "always"', *HOOK)
    inner = desk.project / "inner"
    inner.mkdir()
    desk.trusts()
    async with AsyncConversation(desk.agent(), workspace=inner, store="memory:") as talk:
        await talk.run(orders([shell("mkdir .git", "a")], [shell("touch unguarded", "b")], say="Done."))
        assert (await talk.approve()).outcome == "awaiting_approval"
        await talk.open_turn()
        with pytest.raises(TrustChanged):
            await talk.approve()
        assert not (inner / "unguarded").exists()
        turn = await talk.open_turn()
        assert turn is not None
        assert turn.outcome == "awaiting_approval", "the turn is as it was"


async def test_a_sub_agent_is_guarded_as_its_parent_is(desk: Desk) -> None:
    inner = desk.project / "inner"
    inner.mkdir()
    desk.trusts()
    agent = desk.agent(sub_agents=True)
    async with AsyncConversation(agent, workspace=inner, store="memory:") as talk:
        task = orders([shell("touch unguarded", "c")], say="Done.")
        turn = await talk.run(orders([shell("mkdir .git", "a")], [spawn(task, nickname="kid")], [wait()], say="Done."))
        assert "works under the hooks or the approval policy" in str(results(turn.events))
        assert not (inner / "unguarded").exists()


async def test_another_project_that_is_trusted_does_not_take_the_place_of_the_guards(desk: Desk) -> None:
    inner = desk.project / "inner"
    inner.mkdir()
    desk.trusts()
    async with AsyncConversation(desk.agent(), workspace=inner, store="memory:") as talk:
        await talk.run(orders([shell("mkdir .git")], say="Done."))
        set_trust(inner, "trusted", desk.config)  # perhaps long ago, and for another reason
        with pytest.raises(TrustChanged, match=f"its folder {inner} belongs to {inner} now") as refused:
            await talk.run("Go on")
        assert refused.value.code == "guards_lost"
        async with await talk.fork(workspace=inner) as chosen:  # as the error says: somebody names the folder
            assert (await chosen.run("In a folder that was chosen")).outcome == "committed"
        shutil.rmtree(inner / ".git")
        assert (await talk.run("It belongs to its project again")).outcome == "committed"


@pytest.mark.parametrize("first", ["waits", "fails"])
async def test_guards_are_kept_before_the_first_turn_under_them_ends(desk: Desk, first: str) -> None:
    desk.sets('approval = "always"', *HOOK)
    async with await open_store("memory:") as store:
        async with AsyncConversation(desk.agent(), workspace=desk.project, store=store, conversation_id="c") as talk:
            await talk.update_state({"made": "while nobody had decided"})
            desk.trusts()
            await talk.run(orders([shell("true", "a")], [shell("touch unguarded", "b")], say="Done."))
            if first == "fails":
                await talk.discard()
            set_trust(desk.project, None, desk.config)
            with pytest.raises(TrustChanged):
                await (talk.approve() if first == "waits" else talk.run(orders([shell("touch unguarded")])))
        assert not (desk.project / "unguarded").exists()
        settings = (await store.find("c")).settings
        assert f'"guarded_by":"{desk.project}"' in settings


async def test_guards_are_kept_though_somebody_else_writes_at_the_same_moment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await open_store("memory:") as store, desk.conversation(store=store, conversation_id="c") as talk:
        await talk.run("Hello")
        desk.trusts()
        note, written = store.note, 0

        async def races(*args: Any, **kwargs: Any) -> Any:
            nonlocal written
            written += 1
            if written == 1:
                await note(talk.id, new_id(), [remembers("moved", "1")])
            return await note(*args, **kwargs)

        monkeypatch.setattr(store, "note", races)
        await talk.run(orders([shell("true")], say="Done."))
        assert written == 2, "it is written again where the conversation stands now"
        kinds = [turn.kind for turn in (await store.turns(talk.id)).items]
        assert kinds == ["turn", "note", "note", "turn"], "the guards are on disk before the turn"


async def test_whoever_goes_on_without_a_guarded_folder_that_is_gone_is_asked_about_every_call(desk: Desk) -> None:
    desk.trusts()
    async with await open_store("memory:") as store:
        agent = desk.agent()
        async with AsyncConversation(agent, workspace=desk.project, store=store, conversation_id="c") as talk:
            await talk.run("Hello")
        shutil.rmtree(desk.project)
        set_trust(desk.project, None, desk.config)
        opened = await AsyncConversation.open("c", agent=agent, store=store, allow={"workspace"})
        async with opened as talk:
            assert (await talk.run(orders([shell("true")], say="Done."))).outcome == "awaiting_approval"


async def test_a_conversation_of_a_project_without_guards_goes_on_when_the_project_is_forgotten(desk: Desk) -> None:
    desk.sets('instructions = "Be brief."')
    desk.trusts()
    async with desk.conversation() as talk:
        await talk.run("Hello")
        set_trust(desk.project, None, desk.config)
        assert (await talk.run("Go on")).outcome == "committed"
