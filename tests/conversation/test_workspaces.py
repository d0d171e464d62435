"""Forks with a folder of their own: what they see, what is left of them, and who removes them."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.conversation.support.homes import Home, LocalHome
from tests.server.support.serving import Served

from forkpoint import LLM, Agent, AsyncConversation, ToolContext, tool
from forkpoint.agent.builtin import shell
from forkpoint.agent.team.offer import SubAgents
from forkpoint.backend.results import Isolation, RemovedWorkspace
from forkpoint.backend.settings import Settings
from forkpoint.errors import (
    AlreadyExists,
    BadArgument,
    BadPosition,
    BadWorkspace,
    CannotResume,
    ForkpointError,
    KeyReused,
    Stale,
)
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Heard, Reply, Script, ScriptedCall
from forkpoint.workspace import set_trust
from forkpoint.workspace.isolation import Kind

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(shutil.which("git") is None, reason="a worktree is git's")]


@tool(risky=True)
def write(ctx: ToolContext, text: str) -> str:
    """Writes a file."""
    assert ctx.workspace is not None
    (ctx.workspace / "a.txt").write_text(text)
    return "written"


@pytest.fixture(autouse=True)
def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: None) -> Path:
    """A user with no settings, and with a place for workspaces."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(tmp_path / "workspaces"))
    return tmp_path / "workspaces"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    (folder / "a.txt").write_text("committed\n")
    (folder / ".gitignore").write_text(".env\n")
    git(folder, "init", "-q", "-b", "main", "--template=")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=Ann", "-c", "user.email=ann@example.com", "commit", "-q", "-m", "first")
    return folder


@pytest.fixture
def repo(tmp_path: Path, template: Path) -> Path:
    """A repository with a change that is not committed, and a file that is ignored."""
    shutil.copytree(template, tmp_path / "repo")
    (tmp_path / "repo" / "a.txt").write_text("changed\n")
    (tmp_path / "repo" / ".env").write_text("KEY=1\n")
    return tmp_path / "repo"


@pytest.fixture
def source(home: Home, repo: Path) -> AsyncConversation:
    return conversation(home, repo)


def conversation(home: Home, folder: Path | None, *texts: str) -> AsyncConversation:
    """A conversation whose every turn writes the next of these texts."""
    replies = [r for text in texts for r in (Reply(calls=(ScriptedCall("write", f'{{"text":"{text}"}}'),)), Reply("."))]
    model = Script(replies).register(f"workspaces-{home.file.parent.name}") if replies else "scripted/echo"
    agent = Agent(LLM(model), tools=[write], name="writer")
    return AsyncConversation(home.agent(agent), store=home.store, workspace=folder)


NAMES = "keeper", "branch", "keeper"
"""The folders of a keeper, of the branch that it keeps, and of what was set aside."""


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def branches(repo: Path) -> list[str]:
    return git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/forkpoint").split()


def left(workspaces: Path, repo: Path) -> list[str]:
    """All that there is of folders that were made for forks."""
    return [*(sorted(os.listdir(workspaces)) if workspaces.exists() else ()), *branches(repo)]


async def kind_of(one: AsyncConversation) -> str | None:
    isolation = (await one.info()).isolation
    return None if isolation is None else isolation.kind


# What a fork sees.


@pytest.mark.parametrize("kind", ["worktree", "copy"])
async def test_two_forks_that_edit_the_same_file_do_not_see_each_other(
    home: Home, repo: Path, workspaces: Path, kind: Kind
) -> None:
    source = conversation(home, repo, "one", "two", "three")
    one, two = [await source.fork(conversation_id=name, workspace=kind) for name in ("fix-1", "fix-2")]
    for each in (one, two, source):
        assert (await each.run("write")).outcome == "committed"
    folders = [each.workspace for each in (one, two, source)]
    assert folders == [workspaces / "fix-1", workspaces / "fix-2", repo]
    assert [(folder / "a.txt").read_text() for folder in folders if folder] == ["one", "two", "three"]
    assert [(folder / ".env").exists() for folder in folders if folder] == [kind == "copy", kind == "copy", True]
    branch = "forkpoint/fix-1" if kind == "worktree" else None
    notes = ("1 entry that git ignores is not here: .env",) if kind == "worktree" else ()
    assert (await one.info()).isolation == Isolation(kind, str(repo), branch, notes)
    again = await AsyncConversation.open(one.id, store=home.store, bind=False)
    assert again.workspace == workspaces / "fix-1"


async def test_a_fork_shares_the_folder_unless_it_is_told_otherwise_and_its_record_says_so(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    shared, other = await source.fork(), await source.fork(workspace=tmp_path / "other")
    below = await other.fork(workspace="share")
    assert [await kind_of(one) for one in (source, shared, other, below)] == [None, "share", "path", "share"]
    assert [one.workspace for one in (shared, other, below)] == [repo, tmp_path / "other", tmp_path / "other"]
    assert left(workspaces, repo) == []
    assert await kind_of(await conversation(home, None).fork()) is None, "there is nothing to share"


async def test_a_fork_of_a_fork_has_what_that_one_has(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path
) -> None:
    first = await source.fork(conversation_id="first", workspace="worktree")
    (workspaces / "first" / "a.txt").write_text("of the first\n")
    second = await first.fork(conversation_id="second", workspace="worktree")
    copied = await first.fork(conversation_id="copied", workspace="copy")
    shared = await second.fork()
    for one in (second, copied):
        assert one.workspace is not None
        assert (one.workspace / "a.txt").read_text() == "of the first\n"
    assert (repo / "a.txt").read_text() == "changed\n"
    info = await shared.info()
    assert (info.workspace, info.isolation and info.isolation.kind) == (str(workspaces / "second"), "share")
    assert info.isolation is not None
    assert (info.isolation.source, info.isolation.branch) == (str(workspaces / "first"), "forkpoint/second")
    moved = await second.fork(workspace=repo)
    assert (await moved.info()).isolation == Isolation("path"), "what was made is not its own any more"


async def test_a_rewind_leaves_the_folder_to_both(home: Home, repo: Path, workspaces: Path) -> None:
    source = conversation(home, repo, "one")
    fork = await source.fork(conversation_id="fork", workspace="copy")
    turn = await fork.run("write")
    aside = await fork.rewind(before=turn)
    assert aside is not None
    assert (aside.workspace, fork.workspace) == (workspaces / "fork", workspaces / "fork")
    assert (await kind_of(aside), await kind_of(fork)) == ("share", "copy")
    assert (workspaces / "fork" / "a.txt").read_text() == "one", "files have no history to go back in"


async def test_sub_agents_work_where_their_parent_does(home: Home, repo: Path, workspaces: Path) -> None:
    agent = Agent("scripted/echo", tools=[write], name="parent", sub_agents=SubAgents())
    source = AsyncConversation(home.agent(agent), store=home.store, workspace=repo)
    before = await source.spawn_agent("Look around.", nickname="scout")
    assert before.workspace == repo
    fork = await source.fork(conversation_id="fork", workspace="copy")
    own = await fork.spawn_agent("Look around.", nickname="own")
    assert (own.workspace, await kind_of(own)) == (workspaces / "fork", "share")
    await fork.send_to_agent("scout", "And now?")
    async with await home.opened() as store:
        there = [Settings.from_json(one.settings) for one in (await store.conversations(parent=fork.id)).items]
    places = {one.sub_agent.nickname: one.workspace for one in there if one.sub_agent is not None}
    assert places == {"own": str(workspaces / "fork"), "scout": str(workspaces / "fork")}
    assert await fork.delete() == RemovedWorkspace(str(workspaces / "fork"), True), "they went with it"
    assert before.workspace == repo


async def test_a_copy_of_an_untrusted_folder_is_untrusted(tmp_path: Path, repo: Path) -> None:
    config = tmp_path / "config" / "forkpoint" / "config.toml"
    assert set_trust(repo, "untrusted", config).written
    source = conversation(LocalHome(tmp_path), repo, "one")
    fork = await source.fork(workspace="copy")
    assert (await fork.run("write")).outcome == "awaiting_approval"


# Once, or not at all.


async def test_retries_with_a_key_make_one_folder(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path
) -> None:
    first = await source.fork(title="Try it", workspace="worktree", key="k")
    assert first.workspace is not None
    assert (name := first.workspace.name) == f"Try-it-{first.id[-6:]}"
    await source.run("It goes on.")
    again = await source.fork(title="Try it", workspace="worktree", key="k")
    assert (again.id, again.workspace) == (first.id, first.workspace)
    with pytest.raises(KeyReused):
        await source.fork(title="Try it", workspace="copy", key="k")
    assert left(workspaces, repo) == [name, f"{name}.json", f"forkpoint/{name}"]


async def test_two_with_one_key_at_once_make_one_folder(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path
) -> None:
    await source.run("Hello.")
    found: list[AsyncConversation] = []

    async def fork() -> None:
        found.append(await source.fork(workspace="worktree", key="k"))

    async with anyio.create_task_group() as both:
        both.start_soon(fork)
        both.start_soon(fork)
    assert len({(one.id, one.workspace) for one in found}) == 1
    assert found[0].workspace is not None
    name = found[0].workspace.name
    assert left(workspaces, repo) == [name, f"{name}.json", f"forkpoint/{name}"]


async def test_a_fork_that_fails_leaves_no_folder(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path, tmp_path: Path
) -> None:
    await source.fork(conversation_id="taken")
    with pytest.raises(AlreadyExists):
        await source.fork(conversation_id="taken", workspace="worktree")
    with pytest.raises(BadPosition):
        await source.fork(at="7-12", workspace="copy")
    with pytest.raises(Stale):
        await source.fork(if_revision=7, workspace="copy")
    assert left(workspaces, repo) == []
    (tmp_path / "plain").mkdir()
    plain = conversation(home, tmp_path / "plain")
    with pytest.raises(
        BadWorkspace, check=BadWorkspace.workspace_not_made.made, match="it is in no git repository; use a copy"
    ) as refused:
        await plain.fork(workspace="worktree")
    assert (refused.value.fields["kind"], refused.value.path) == ("worktree", str(tmp_path / "plain"))
    (tmp_path / "plain").rmdir()
    with pytest.raises(BadWorkspace, check=BadWorkspace.workspace_not_made.made, match="there is no such folder"):
        await plain.fork(workspace="copy")
    with pytest.raises(BadArgument, match="there is no workspace to make one of"):
        await conversation(home, None).fork(workspace="copy")
    assert left(workspaces, repo) == []
    page = await AsyncConversation.list(store=home.store)
    assert len(page.items) == 4, "the two sources and the one without a folder, and the fork that took the name"


@pytest.fixture
def waiting_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A git that says on one pipe that the worktree is there, and then waits for another before it goes on."""
    begun, release = tmp_path / "begun", tmp_path / "release"
    os.mkfifo(begun)
    os.mkfifo(release)
    as_git(tmp_path, monkeypatch, f"echo > {begun}; read line < {release}")
    return begun, release


def as_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """Puts a program in the place of git that is git, and does more after ``git worktree add``."""
    real = shutil.which("git")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "git"
    program.write_text(
        f'#!/bin/sh\ncase " $* " in *" worktree add "*) "{real}" "$@" || exit 1; {after}; exit 0;; esac\n'
        f'exec "{real}" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("times", [1, 2])
async def test_a_fork_that_is_cancelled_while_its_folder_is_made_leaves_none(
    tmp_path: Path, repo: Path, workspaces: Path, waiting_git: tuple[Path, Path], times: int
) -> None:
    begun, release = waiting_git
    source = conversation(LocalHome(tmp_path), repo)
    await source.run("Hello.")
    forking = asyncio.get_running_loop().create_task(source.fork(conversation_id="fork", workspace="worktree"))
    await anyio.to_thread.run_sync(begun.read_text)
    assert left(workspaces, repo) == ["fork", "fork.json", "forkpoint/fork"]
    for _ in range(times):
        forking.cancel()
        await anyio.lowlevel.checkpoint()
    await anyio.to_thread.run_sync(release.write_text, "\n")
    with pytest.raises(asyncio.CancelledError):
        await forking
    assert left(workspaces, repo) == []
    assert len((await AsyncConversation.list(store=f"sqlite:///{tmp_path / 'forkpoint.db'}")).items) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
async def test_a_process_that_is_killed_while_it_makes_a_folder_leaves_no_fork_and_the_source_as_it_was(
    tmp_path: Path, repo: Path, workspaces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = LocalHome(tmp_path)
    source = conversation(home, repo)
    await source.run("Hello.")
    before = git(repo, "status", "--porcelain=v2", "--branch")
    code = f"""
from forkpoint import Conversation
with Conversation.open({source.id!r}, bind=False, store={home.store!r}) as source:
    source.fork(conversation_id="fork", workspace="worktree")
"""
    with monkeypatch.context() as context:
        as_git(tmp_path, context, "kill -KILL $PPID")
        killed = await anyio.run_process([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(ForkpointError):
        await AsyncConversation.open("fork", store=home.store, bind=False)
    assert git(repo, "status", "--porcelain=v2", "--branch") == before
    fork = await source.fork(conversation_id="fork", workspace="worktree")
    assert fork.workspace == workspaces / "fork-2", "what was left half made is in nobody's way, and nobody's fork"
    assert (fork.workspace / "a.txt").read_text() == "changed\n"


# Keeping.


@pytest.mark.parametrize("kind", ["worktree", "copy"])
async def test_after_a_keep_each_works_where_it_worked_and_what_was_set_aside_shares_the_folder(
    home: Home, repo: Path, workspaces: Path, kind: Kind
) -> None:
    source = conversation(home, repo, "of the branch", "after the keep")
    keeper = await source.fork(conversation_id="keeper", workspace=kind)
    await keeper.update_state({"at": "the keeper's"})
    branch = await source.fork(conversation_id="branch", workspace=kind)
    await branch.run("write")
    aside = await keeper.keep(branch)
    assert aside is not None
    assert [one.workspace for one in (keeper, branch, aside)] == [workspaces / name for name in NAMES]
    assert [await kind_of(one) for one in (keeper, branch, aside)] == [kind, kind, "share"]
    assert (workspaces / "keeper" / "a.txt").read_text() == "changed\n", "files are not moved"
    await keeper.run("write")
    texts = [(folder / "a.txt").read_text() for folder in (repo, workspaces / "keeper", workspaces / "branch")]
    assert texts == ["changed\n", "after the keep", "of the branch"]
    again = await keeper.keep(aside)
    assert again is not None
    assert [one.workspace for one in (keeper, again)] == [workspaces / "keeper"] * 2
    assert [await kind_of(one) for one in (keeper, again)] == [kind, "share"], "the undo moves no files either"


async def test_deleting_what_a_keep_set_aside_removes_no_folder_that_somebody_works_in(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path
) -> None:
    await source.run("one")
    keeper = await source.fork(conversation_id="keeper", workspace="worktree")
    await keeper.run("two")
    branch = await source.fork(conversation_id="branch", workspace="worktree")
    await branch.run("three")
    aside = await keeper.keep(branch)
    assert await source.keep(branch) is None, "it goes on from there, so there is nothing to set aside"
    assert aside is not None
    root = str(workspaces / "keeper")
    assert await aside.delete() == RemovedWorkspace(root, False, "keeper works there too")
    assert await branch.delete() == RemovedWorkspace(str(workspaces / "branch"), True), "no one else works there"
    assert (await keeper.turns()).items[-1].text == "You said: three"
    assert (await keeper.run("four")).outcome == "committed", "it needs none of the folders that are gone"
    assert await keeper.delete() == RemovedWorkspace(root, True)
    assert left(workspaces, repo) == []
    assert (repo / "a.txt").read_text() == "changed\n"


async def test_whatever_is_deleted_first_the_last_of_keeper_and_set_aside_takes_the_folder_along(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path
) -> None:
    keeper = await source.fork(conversation_id="keeper", workspace="copy")
    await keeper.run("one")
    branch = await source.fork(conversation_id="branch")
    await branch.run("two")
    aside = await keeper.keep(branch)
    assert aside is not None
    root = str(workspaces / "keeper")
    assert await keeper.delete() == RemovedWorkspace(root, False, f"{aside.id} works there too")
    assert await branch.delete() is None, "its folder is the source's"
    assert await aside.delete() == RemovedWorkspace(root, True)
    assert left(workspaces, repo) == []


async def test_the_shell_and_the_sub_agents_of_a_kept_branch_work_where_the_keeper_does(
    tmp_path: Path, repo: Path, workspaces: Path
) -> None:
    def obey(heard: Heard) -> Reply:
        told = heard.body["messages"][-1]
        if told["role"] == "tool":
            return Reply(told["content"])
        return Reply(calls=(ScriptedCall("shell", msgspec.json.encode({"command": told["content"]}).decode()),))

    model = Script(obey).register(f"shell-{tmp_path.name}")
    agent = Agent(LLM(model), tools=[shell], name="runs", sub_agents=SubAgents())
    (repo / "docs").mkdir()
    home = LocalHome(tmp_path)
    source = AsyncConversation(agent, store=home.store, workspace=repo, conversation_id="source")
    branch = await source.fork(conversation_id="branch", workspace="copy")
    await branch.run("mkdir new && cd docs && export HERE=$PWD")
    scout = await branch.spawn_agent("pwd", nickname="scout")
    assert scout.workspace == workspaces / "branch"
    assert await source.keep(branch) is None
    assert (await source.run("echo $HERE in $PWD")).text.startswith(f"{repo}/docs in {repo}/docs\n")
    await branch.run("cd ../new")
    assert await source.keep(branch) is not None
    assert "is gone; this ran in the workspace's own folder" in (await source.run("pwd")).text, "the model is told"
    await source.send_to_agent("scout", "pwd")
    async with await home.opened() as store:
        (own,) = (await store.conversations(parent=source.id)).items
    assert Settings.from_json(own.settings).workspace == str(repo)
    gone = RemovedWorkspace(str(workspaces / "branch"), True)
    assert await branch.delete() == gone, "its own scout went with it, and the keeper's works elsewhere"
    assert (repo / "docs").is_dir()


# Deleting.


async def test_one_that_works_in_a_folder_through_a_link_keeps_it(
    home: Home, source: AsyncConversation, tmp_path: Path, workspaces: Path
) -> None:
    fork = await source.fork(conversation_id="fork", workspace="worktree")
    (tmp_path / "link").symlink_to(workspaces / "fork")
    other = conversation(home, tmp_path / "link")
    await other.run("Hello.")
    root = str(workspaces / "fork")
    assert await fork.delete() == RemovedWorkspace(root, False, f"{other.id} works there too")
    assert (workspaces / "fork" / "a.txt").exists()


async def test_the_last_that_works_in_a_folder_takes_it_along(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path
) -> None:
    fork = await source.fork(conversation_id="fork", workspace="worktree")
    shared = await fork.fork(conversation_id="shared")
    stranger = conversation(home, workspaces / "fork")
    await stranger.run("Hello.")
    root = str(workspaces / "fork")
    assert await fork.delete() == RemovedWorkspace(root, False, f"{stranger.id} works there too")
    assert await stranger.delete() is None
    assert await shared.delete() == RemovedWorkspace(root, True)
    assert left(workspaces, repo) == []
    assert await source.delete() is None
    assert (repo / "a.txt").read_text() == "changed\n"


async def test_a_folder_stays_if_something_would_be_lost(
    home: Home, source: AsyncConversation, repo: Path, workspaces: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    named = await source.fork(workspace=tmp_path / "other")
    assert await named.delete() is None
    assert (tmp_path / "other").is_dir(), "a folder that somebody named is not ours to remove"
    fork = await source.fork(conversation_id="fork", workspace="worktree")
    (workspaces / "fork" / "new.txt").write_text("new")
    removed = await fork.delete()
    why = "it has 2 changes that no commit has: a.txt, new.txt"
    assert removed == RemovedWorkspace(str(workspaces / "fork"), False, why)
    assert (workspaces / "fork" / "new.txt").read_text() == "new"


async def test_a_folder_that_is_gone_can_be_gone_on_without(
    home: Home, source: AsyncConversation, workspaces: Path
) -> None:
    fork = await source.fork(conversation_id="fork", workspace="copy")
    shutil.rmtree(workspaces / "fork")
    with pytest.raises(CannotResume, match="workspace"):
        await fork.run("one")
    again = await AsyncConversation.open(fork.id, store=home.store, agent=fork.agent, allow=["workspace"])
    await again.run("two")
    info = await again.info()
    assert (info.workspace, info.isolation) == (None, None)
    assert await again.delete() is None


# A server.


async def test_a_server_makes_folders_only_if_it_says_so(tmp_path: Path, repo: Path, workspaces: Path) -> None:
    file = tmp_path / "agents.toml"
    said = f'[agents.a]\nmodel = "scripted/echo"\nworkspace = "{repo}"\n'
    file.write_text(said)
    for allowed in (False, True):
        file.write_text("allow_isolation = true\n" + said if allowed else said)
        server = Served(agents=Catalog.from_file(file)).start()
        try:
            with server.client() as client:
                client.post("/api/conversations", json={"id": "source"}).raise_for_status()
                forked = client.post("/api/conversations/source/fork", json={"id": "fork", "workspace": "copy"})
                shared = client.post("/api/conversations/source/fork", json={"workspace": "share"}).json()
                assert shared["isolation"]["kind"] == "share"
                if not allowed:
                    assert (forked.status_code, forked.json()["error"]["code"]) == (422, "workspace_not_made")
                    assert "allow_isolation" in forked.json()["error"]["message"]
                    assert left(workspaces, repo) == []
                    continue
                assert (forked.status_code, forked.json()["isolation"]["kind"]) == (201, "copy")
                said_in_chat = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
                header = {"X-Conversation-Id": "fork"}
                client.post("/v1/chat/completions", json=said_in_chat, headers=header).raise_for_status()
                assert client.get("/api/conversations/fork").json()["isolation"]["kind"] == "copy"
                deleted = client.delete("/api/conversations/fork")
                folder = {"path": str(workspaces / "fork"), "removed": True, "why": None}
                assert (deleted.status_code, deleted.json()) == (200, {"workspace": folder})
                assert client.delete("/api/conversations/source").status_code == 204
        finally:
            server.stop()
