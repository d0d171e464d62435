"""Hooks in conversations: over forks, rewinds, retries, resumption, reopening, approvals and sub-agents, in both homes.

Whatever a hook does, its turn ends within the hook's limit, in a clear result.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conversation.support.agents import PATIENCE, agent_of, asks, call, kinds, messages_of, results
from tests.conversation.support.homes import Home
from tests.conversation.support.team import lead, orders, spawn, wait
from tests.conversation.support.tools import logged, steps

from forkpoint import Agent, AsyncConversation, Hook, Role, SubAgents, TurnFailed, tool
from forkpoint.agent import Block, HookContext
from forkpoint.agent.stored.document import portable_document
from forkpoint.backend.messages import as_message
from forkpoint.engine.engine import Engine
from forkpoint.errors import BadAgent, BadSetting, CannotResume, HookBlocked, TurnCancelled
from forkpoint.events import Event, HookRun, StagedEvent
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.store import open_store
from forkpoint.testing import Fault, Heard, Reply
from forkpoint.workspace import set_trust

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="hooks that are commands run on Linux and macOS alone"),
]

ROOT = Path(__file__).parents[2]
MOMENTS = ("turn_start", "user_message", "before_tool", "after_tool", "turn_end")


@tool(risky=True)
def work(x: int) -> str:
    """Works."""
    return f"worked {x}"


class Seen:
    """Hooks of all moments that note what they were asked, and add a word for the model."""

    def __init__(self, *moments: str) -> None:
        self.asked: list[HookContext] = []
        self.hooks = tuple(Hook(moment, function=self.note, name=moment) for moment in moments or MOMENTS)  # type: ignore[arg-type]

    def note(self, context: HookContext) -> str:
        self.asked.append(context)
        return f"{context.moment} of {context.message}"

    def take(self) -> list[str]:
        """The moments since the last time."""
        taken, self.asked = self.asked, []
        return [context.moment for context in taken]


def runs(events: Iterable[Event | StagedEvent]) -> list[HookRun]:
    return [event.body for event in events if isinstance(event.body, HookRun)]


def moments(events: Iterable[Event | StagedEvent]) -> list[str]:
    return [run.moment for run in runs(events)]


def works(*texts: str) -> list[Reply | str]:
    """A model that uses its tool before each answer."""
    return [reply for n, text in enumerate(texts) for reply in (asks(call("work", f"c{n}", x=n)), text)]


def working(heard: Heard) -> Reply:
    """The same, however often it is asked."""
    is_asked = messages_of(heard)[-1]["role"] == "user"
    return asks(call("work", "c", x=1)) if is_asked else Reply("done")


# Forks, rewinds, retries, resumption.


async def test_a_fork_has_the_hooks_and_their_records_and_each_has_its_own_runs(home: Home) -> None:
    seen = Seen()
    agent = agent_of(works("one", "two", "three"), tools=[work], hooks=seen.hooks)
    async with AsyncConversation(home.agent(agent), store=home.store) as source:
        first = await source.run("first")
        assert moments(first.events) == seen.take() == list(MOMENTS)
        async with await source.fork() as fork:
            assert runs(await fork.events()) == runs(first.events)
            second = await fork.run("second")
            assert {context.conversation for context in seen.asked} == {fork.id}
            assert {context.turn for context in seen.asked} == {second.id}
            assert seen.take() == list(MOMENTS)
            assert len(runs(await fork.events())) == 10
        assert runs(await source.events()) == runs(first.events), "the source is as it was"
        await source.run("third")
        assert {context.conversation for context in seen.asked} == {source.id}


async def test_what_a_hook_said_stays_where_it_was_said_and_a_rewind_takes_it_back(home: Home) -> None:
    heard: list[str] = []

    def model(asked: Heard) -> Reply:
        heard.append(" | ".join(str(one["content"]) for one in messages_of(asked)))
        return Reply(f"answer {len(heard)}")

    seen = Seen("user_message", "turn_end")
    async with AsyncConversation(home.agent(agent_of(model, hooks=seen.hooks)), store=home.store) as talk:
        for text in ("one", "two"):
            await talk.run(text)
        branch = await talk.rewind(before=(await talk.turns()).items[-1])
        assert branch is not None
        assert moments(await talk.events()) == ["user_message", "turn_end"]
        assert moments(await branch.events()) == ["user_message", "turn_end"] * 2
        await talk.run("three")
        assert heard[2].startswith(heard[0]), "prompts grow at their end"
        assert "turn_end of one" in heard[2]
        assert "of two" not in heard[2]
        await branch.run("four")
        assert heard[3].startswith(heard[1])
        assert "turn_end of two" in heard[3]


async def test_a_retry_asks_all_hooks_again_and_a_resumption_only_those_that_were_not_asked(home: Home) -> None:
    seen = Seen()
    broken = Reply("never heard", fault=Fault("overloaded"))
    answers: list[Reply | str] = [
        asks(call("work", "a", x=1)),
        broken,
        broken,
        asks(call("work", "b", x=2)),
        broken,
        "done",
    ]
    async with AsyncConversation(
        home.agent(agent_of(answers, tools=[work], hooks=seen.hooks)), store=home.store
    ) as talk:
        with pytest.raises(TurnFailed):
            await talk.run("go")
        assert seen.take() == list(MOMENTS[:4])
        with pytest.raises(TurnFailed):
            await talk.resume()
        assert seen.take() == []
        with pytest.raises(TurnFailed) as failed:
            await talk.retry()
        assert seen.take() == list(MOMENTS[:4])
        assert moments(failed.value.turn.events) == list(MOMENTS[:4])
        turn = await talk.resume()
        assert seen.take() == ["turn_end"]
        assert (turn.text, moments(turn.events)) == ("done", list(MOMENTS))
        assert moments(await talk.events()) == list(MOMENTS), "a try that failed is no history"


async def test_a_blocked_turn_fails_the_same_when_resumed_and_is_asked_about_anew_when_retried(home: Home) -> None:
    said: list[Block | None] = [Block("not today"), None]
    hook = Hook("turn_start", function=lambda context: said.pop(0), name="gate")
    async with AsyncConversation(home.agent(agent_of(["done"], hooks=[hook])), store=home.store) as talk:
        for again in (talk.run("go"), None):
            with pytest.raises(TurnFailed, match="not today") as failed:
                await (again or talk.resume())
            assert failed.value.turn.error is not None
            assert failed.value.turn.error.code == "hook_blocked"
        assert len(said) == 1, "a recorded block holds"
        assert (await talk.retry()).text == "done"


async def test_a_hook_that_objects_to_every_answer_fails_the_turn_and_each_resumption_is_one_more_try(
    home: Home,
) -> None:
    hook = Hook("turn_end", function=lambda c: Block("worse") if c.answer != "6" else None, name="judge")
    agent = agent_of(["1", "2", "3", "4", "5", "6"], hooks=[hook])
    async with AsyncConversation(home.agent(agent), store=home.store) as talk:
        with pytest.raises(TurnFailed, match="worse") as failed:
            await talk.run("go")
        assert len(runs(failed.value.turn.events)) == 4
        with pytest.raises(TurnFailed, match="worse"):
            await talk.resume()
        turn = await talk.resume()
        assert (turn.text, [run.blocked for run in runs(turn.events)]) == ("6", [True] * 5 + [False])


# Approvals.


async def test_a_person_is_asked_after_the_hooks_and_those_are_not_asked_again_when_he_agrees(home: Home) -> None:
    seen: list[str] = []

    def odd(context: HookContext) -> Block | None:
        seen.append(f"{context.moment} {context.decoded['x']}")
        return Block("odd") if context.moment == "before_tool" and context.decoded["x"] % 2 else None

    hooks = [Hook(moment, function=odd, tools="wor?", name=moment) for moment in ("before_tool", "after_tool")]
    answers: list[Reply | str] = [asks(*(call("work", f"c{x}", x=x) for x in (1, 2, 4))), "done"]
    agent = agent_of(answers, tools=[work], hooks=hooks, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as talk:
        waiting = await talk.run("go")
        assert (waiting.outcome, [one.id for one in waiting.waiting]) == ("awaiting_approval", ["c2", "c4"])
        assert sorted(seen) == ["before_tool 1", "before_tool 2", "before_tool 4"]
        seen.clear()
        assert (await talk.approve("c2")).outcome == "awaiting_approval"
        assert seen == ["after_tool 2"]
        turn = await talk.deny(reason="enough")
        assert (turn.text, seen) == ("done", ["after_tool 2"]), "what was not run is not looked at"
        assert [(one.id, one.status) for one in turn.calls] == [("c1", "denied"), ("c2", "done"), ("c4", "denied")]


# Opened again.


def local_gate(context: HookContext) -> Block | None:
    return Block("closed") if context.decoded["x"] == 1 else None


async def test_hooks_are_there_when_a_conversation_is_opened_again(home: Home) -> None:
    hooks = [
        Hook("before_tool", command="cat > asked.json; exit 2", tools="work", name="guard"),
        Hook("before_tool", function=local_gate),
    ]
    agent = agent_of(works("one", "two"), tools=[work], hooks=hooks)
    workspace = home.file.parent
    async with AsyncConversation(home.agent(agent), store=home.store, workspace=workspace) as talk:
        await talk.run("first")
    (workspace / "asked.json").unlink()
    given = None if home.at_hand(agent) is None else agent
    async with await AsyncConversation.open(talk.id, agent=given, store=home.store) as opened:
        if given is not None:
            assert opened.agent is not None
            assert opened.agent.hooks == tuple(hooks)
        turn = await opened.run("second")
        assert [run.hook for run in runs(turn.events)] == ["guard"], "the first that blocks is the last that runs"
        assert [result.status for result in results(turn.events)] == ["denied"]
    assert '"message":"second"' in (workspace / "asked.json").read_text()


async def test_a_missing_hook_is_listed_and_whoever_goes_on_without_it_is_asked_about_every_call() -> None:
    lost = Hook("before_tool", function=lambda context: None, name="lost")
    agent = agent_of(working, tools=[work], hooks=[lost, Hook("turn_end", command="true")])
    async with await open_store("memory:") as store:
        async with AsyncConversation(agent, store=store) as talk:
            await talk.run("first")
        with pytest.raises(CannotResume) as missing:
            await AsyncConversation.open(talk.id, store=store)
        assert [(item.kind, item.name, item.why) for item in missing.value.items] == [
            ("hook", "lost", "it has no import path")
        ]
        async with await AsyncConversation.open(talk.id, agent=agent, store=store) as opened:
            assert opened.agent == agent, "an agent lends its functions"
        for allow in ({"hook:lost"}, {"hooks"}):
            async with await AsyncConversation.open(talk.id, allow=allow, store=store) as opened:
                turn = await opened.run("more")
                assert (turn.outcome, [one.tool for one in turn.waiting]) == ("awaiting_approval", ["work"])
                await opened.discard()
        async with await AsyncConversation.open(talk.id, allow={"hooks"}, store=store) as opened:
            await opened.run("more")
            assert [run.hook for run in runs((await opened.approve()).events)] == ["true"]
        async with await AsyncConversation.open(talk.id, store=store) as opened:
            assert (await opened.run("more")).outcome == "awaiting_approval", "from then on it stays so"


def test_hooks_are_sent_to_no_server() -> None:
    for hook in (Hook("turn_start", command="true"), Hook("turn_start", function=local_gate)):
        with pytest.raises(BadAgent, match="it has hooks"):
            portable_document(Agent("scripted/echo", hooks=[hook]))


# A process that dies while a hook runs.

DIES = """
    import sys
    import anyio
    from tests.conversation.support.tools import agent, steps
    from forkpoint import AsyncConversation, Hook

    async def talk(moment):
        hook = Hook(moment, command=HOOK, name="slow", tools="*")
        async with AsyncConversation(
            agent(hooks=[hook]), conversation_id=moment, store=STORE, workspace=f"{FOLDER}/{moment}"
        ) as conversation:
            await conversation.run(steps([("write", {"line": "wrote"})]))

    async def main():
        async with anyio.create_task_group() as group:
            for moment in MOMENTS:
                group.start_soon(talk, moment)

    anyio.run(main)
"""
SLOW = "echo $$ >> hook; [ -e again ] || sleep 600"


@pytest.fixture
def left(tmp_path: Path) -> Iterator[None]:
    """Ends the hooks that nobody ends, since the process that started them was killed."""
    yield
    for file in tmp_path.glob("*/hook"):
        with suppress(ProcessLookupError):
            os.killpg(int(file.read_text().split()[0]), signal.SIGKILL)


def started(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


def hanging(folder: Path) -> int:
    """How many hooks run, each in a folder of its own."""
    return sum(file.read_text() != "" for file in folder.glob("**/hook"))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # macOS has no such files
        return sys.platform != "linux"


@pytest.mark.usefixtures("left")
async def test_a_turn_whose_process_was_killed_in_a_hook_goes_on_with_that_hook(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'forkpoint.db'}"
    for moment in MOMENTS:
        (tmp_path / moment).mkdir()
    given = f"HOOK, STORE, FOLDER, MOMENTS = {SLOW!r}, {store!r}, {str(tmp_path)!r}, {MOMENTS!r}\n"
    with started(given + textwrap.dedent(DIES)) as process:
        try:
            with anyio.fail_after(PATIENCE):
                while hanging(tmp_path) < len(MOMENTS):
                    assert process.poll() is None
                    await anyio.sleep(0.01)
        finally:
            process.kill()
    for moment in MOMENTS:
        folder = tmp_path / moment
        (folder / "again").touch()
        async with await AsyncConversation.open(moment, store=store) as talk:
            assert (await talk.status(), await talk.events()) == ("interrupted", [])
            if moment == "turn_end":  # what is judged is on disk
                assert "assistant_message" in kinds((await talk.turns()).items[-1].events)
            turn = await talk.resume()
            if moment == "before_tool":  # nobody knows of a call without a result whether it was started
                assert (turn.calls[0].status, logged(folder), runs(turn.events)) == ("unknown", [], [])
                turn = await talk.run(steps([("write", {"line": "wrote"})]))
            assert (turn.calls[0].status, logged(folder)) == ("done", ["wrote"])
            assert [(run.moment, run.exit_code) for run in runs(turn.events)] == [(moment, 0)]
        assert len((folder / "hook").read_text().split()) == 2, "it was asked again, once"


async def test_a_turn_that_is_cancelled_in_a_hook_ends_it_and_goes_on_with_it(home: Home) -> None:
    workspace = home.file.parent
    hook = Hook("after_tool", command=SLOW, name="slow")
    agent = agent_of(works("done"), tools=[work], hooks=[hook])
    async with AsyncConversation(home.agent(agent), store=home.store, workspace=workspace) as talk:
        async with anyio.create_task_group() as group:

            async def go() -> None:
                with pytest.raises(TurnCancelled):
                    await talk.run("go")

            group.start_soon(go)
            with anyio.fail_after(PATIENCE):
                while not hanging(workspace):  # noqa: ASYNC110 - in another process
                    await anyio.sleep(0.01)
            await talk.cancel()
        with anyio.fail_after(PATIENCE):
            while is_alive(int((workspace / "hook").read_text())):  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.01)
        (workspace / "again").touch()
        turn = await talk.resume()
        assert [(run.hook, run.exit_code) for run in runs(turn.events)] == [("slow", 0)]
        assert [result.status for result in results(turn.events)] == ["done"]


# Sub-agents.


async def test_sub_agents_have_their_parents_hooks_and_their_own_and_keep_the_records(home: Home) -> None:
    seen: list[tuple[str | None, str]] = []

    def note(context: HookContext) -> None:
        seen.append((context.sub_agent, context.moment))

    def even(context: HookContext) -> Block | None:
        return Block("even") if context.decoded["x"] % 2 == 0 else None

    parents = (Hook("before_tool", function=even, tools="work", name="even"), Hook("turn_end", function=note, name="n"))
    own = Hook("after_tool", function=note, tools="work", name="own")
    helper = lead(False, tools=[work], hooks=[own], name="helper")
    team = SubAgents(roles={"helper": Role("helps", agent=helper)})
    task = orders([call("work", "a", x=1), call("work", "b", x=2)])
    async with AsyncConversation(home.agent(lead(team, tools=[work], hooks=parents)), store=home.store) as parent:
        turn = await parent.run(orders([spawn(task, role="helper", nickname="h")], [wait()], say="done"))
        assert turn.text == "done"
        assert runs(turn.events) == [HookRun("n", "turn_end")], "what a sub-agent's hooks did stands with it"
        (member,) = await parent.list_agents()
        async with await AsyncConversation.open(member.conversation, bind=False, store=home.store) as child:
            events = await child.events()
        asked = {(run.hook, run.call_id, run.blocked) for run in runs(events) if run.moment == "before_tool"}
        assert asked == {("even", "a", False), ("even", "b", True)}
        assert {(result.call_id, result.status) for result in results(events)} == {("a", "done"), ("b", "denied")}
        assert [run.hook for run in runs(events) if run.moment != "before_tool"] == ["own", "n"]
        assert seen == [("/root/h", "after_tool"), ("/root/h", "turn_end"), (None, "turn_end")]


async def test_a_hook_that_a_parent_got_since_holds_for_a_sub_agent_that_it_had_before(home: Home) -> None:
    agent = lead(True, tools=[work])
    stricter = agent.replace(hooks=[Hook("before_tool", function=local_gate, tools="work")])
    task = orders([call("work", "a", x=1)])
    async with AsyncConversation(home.agent(agent), store=home.store) as parent:
        await parent.run(orders([spawn("hello", nickname="h")], [wait()], say="done"))
        await parent.change_agent(home.agent(stricter))
        await parent.send_to_agent("h", task)
        await parent.wait_agent("h")
        (member,) = await parent.list_agents()
        async with await AsyncConversation.open(member.conversation, bind=False, store=home.store) as child:
            events = await child.events()
        assert ([one.status for one in results(events)], [run.reason for run in runs(events)]) == (
            ["denied"],
            ["closed"],
        )


# An answer of which nothing is kept.


async def test_an_answer_without_a_conversation_has_hooks_too(tmp_path: Path) -> None:
    seen = Seen()
    async with await open_store("memory:") as store:
        backend = Engine(store)
        agent = agent_of(works("done"), tools=[work], hooks=seen.hooks)
        identity = own_identity("someone")
        turn = await backend.turns.once(agent, (as_message("hi"),), identity=identity, tell=lambda _: None)
        assert [context.conversation for context in seen.asked] == [None] * 5
        assert moments(turn.events) == seen.take() == list(MOMENTS)
        blocks = agent.replace(hooks=[Hook("user_message", command="echo not here >&2; exit 2")])
        with pytest.raises(HookBlocked, match="not here"):
            await backend.turns.once(
                blocks, (as_message("hi"),), identity=identity, workspace=tmp_path, tell=lambda _: None
            )
        await backend.close()


# Hooks that misbehave.

LONG = 0.5  # seconds that those may take that would not end by themselves
LATE = "it did not end within 0.5 s"
HOSTILE: dict[str, tuple[str | list[str], str | None]] = {
    "hangs": ("sleep 600", LATE),
    "prints without end": ("yes", LATE),
    "prints much": ("head -c 20000000 /dev/zero", None),
    "starts others": ("for n in 1 2 3 4 5 6 7 8; do sleep 600 & done; wait", LATE),
    "leaves others behind": ("sleep 600 & sleep 600 & exit 0", None),
    "leaves another session behind": (
        f"{sys.executable} -c 'import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(3)'",
        None,
    ),
    "ignores signals": ("trap '' TERM INT HUP QUIT; while :; do sleep 600; done", LATE),
    "stops itself": ("kill -STOP $$", LATE),
    "is ended by a signal": ("kill -KILL $$", "signal 9 ended it"),
    "prints half of a document": ("""printf '{"block": tr'""", None),
    "prints another document": ("""echo '{"block": "yes"}'""", "what it printed makes no sense"),
    "prints no text": (r"printf '{\377\000\376'", None),
    "closes its input": ("exec <&-; exit 0", None),
    "closes all that it has": ("exec <&- >&- 2>&-; sleep 600", LATE),
    "is not there": ("./nothing-of-that-name", "it ended with exit code 127"),
    "cannot be started": (["./nothing-of-that-name"], "it could not be started"),
}


async def test_whatever_a_hook_does_its_turn_ends_within_its_limit_in_a_clear_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once: they take as long as the longest, and none can hold up another."""
    monkeypatch.setattr("forkpoint.system.process.GRACE", 0.1)
    took: dict[str, float] = {}
    ended: dict[str, Any] = {}
    long = "x" * 300_000  # more than a pipe holds

    async def one(name: str, command: str | list[str], reason: str | None) -> None:
        timeout = LONG if reason == LATE else PATIENCE
        hook = Hook("before_tool", command=command, timeout=timeout, on_error="block", name=name)
        talk = AsyncConversation(agent_of(works("done"), tools=[work], hooks=[hook]), store=store, workspace=tmp_path)
        started = time.monotonic()
        ended[name] = await talk.run(long)
        took[name] = time.monotonic() - started

    async with await open_store("memory:") as store:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for name, (command, reason) in HOSTILE.items():
                    group.start_soon(one, name, command, reason)
    for name, (_, reason) in HOSTILE.items():
        turn = ended[name]
        (run,) = runs(turn.events)
        (result,) = results(turn.events)
        assert turn.text == "done", name
        assert (run.blocked, result.status) == (reason is not None, "done" if reason is None else "denied"), name
        assert (run.reason or "").startswith(reason or ""), f"{name}: {run.reason}"
        assert len(run.output or "") < 10_100, name
    assert max(took.values()) < PATIENCE / 2, took


# A trusted project's hooks.


class Project:
    """A project with a hook of its own, and the settings of whoever trusts it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.config = folder / "home" / "forkpoint" / "config.toml"
        (self.root / ".forkpoint").mkdir(parents=True)
        (self.root / ".git").mkdir()
        (self.root / "src").mkdir()
        self.sets('moment = "before_tool"', 'command = [".forkpoint/guard.sh", "here"]', 'tools = "work"')
        guard = self.root / ".forkpoint" / "guard.sh"
        guard.write_text("#!/bin/sh\necho $1 >> ran\necho no work $1 >&2\nexit 2\n")
        guard.chmod(0o755)

    def sets(self, *lines: str) -> None:
        (self.root / ".forkpoint" / "config.toml").write_text("\n".join(["[[hooks]]", *lines]))

    def trusted(self, trust: Any) -> None:
        assert set_trust(self.root, trust, self.config).warning is None

    @property
    def ran(self) -> int:
        """How often its hook ran."""
        file = self.root / "src" / "ran"
        return len(file.read_text().split()) if file.exists() else 0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return Project(Path(os.path.realpath(tmp_path)))


async def test_a_projects_hooks_run_for_as_long_as_it_is_trusted_and_are_stored_nowhere(
    home: Home, project: Project
) -> None:
    own = Hook("before_tool", function=lambda context: None, name="own")
    agent = agent_of(working, tools=[work], hooks=[own])
    async with AsyncConversation(home.agent(agent), store=home.store, workspace=project.root / "src") as talk:
        assert [run.hook for run in runs((await talk.run("undecided")).events)] == ["own"]
        project.trusted("trusted")
        turn = await talk.run("trusted")
        assert [(run.hook, run.reason) for run in runs(turn.events)] == [
            ("own", None),
            (".forkpoint/guard.sh here", "no work here"),
        ]
        assert [one.result for one in turn.calls] == ["This call was not run: no work here"]
        assert project.ran == 1, "it is found in the project's root, and runs in the workspace"
        async with await home.opened() as store:
            assert "guard.sh" not in (await store.read(talk.id)).settings
        project.trusted("untrusted")
        waiting = await talk.run("untrusted")
        assert (waiting.outcome, project.ran) == ("awaiting_approval", 1)
        await talk.discard()
        project.trusted("trusted")
        async with await talk.fork() as fork:
            await fork.run("fork")
        assert project.ran == 2


async def test_a_projects_hooks_hold_for_sub_agents_and_for_answers_that_are_not_kept(project: Project) -> None:
    project.trusted("trusted")
    folder = project.root / "src"
    task = orders([call("work", "a", x=1)])
    async with await open_store("memory:") as store:
        async with AsyncConversation(lead(True, tools=[work]), store=store, workspace=folder) as parent:
            await parent.run(orders([spawn(task, nickname="h")], [wait()], say="done"))
            (member,) = await parent.list_agents()
            async with await AsyncConversation.open(member.conversation, bind=False, store=store) as child:
                events = await child.events()
                assert [result.status for result in results(events)] == ["denied"]
                assert "guard.sh" not in (await store.read(child.id)).settings
            before = project.ran
        backend = Engine(store)
        turn = await backend.turns.once(
            agent_of(works("done"), tools=[work]),
            (as_message("hi"),),
            identity=own_identity("someone"),
            workspace=folder,
            tell=lambda _: None,
        )
        await backend.close()
    assert [result.status for result in results(turn.events)] == ["denied"]
    assert project.ran == before + 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('function = "os:abort"', "must be a command"),
        ('command = "x"\ncolour = "blue"', "unknown field `colour`"),
        ('command = "x"\ntimeout = 99999999999999999999999', "at most 3600 s"),
        ('command = ""', "is blank"),
    ],
)
async def test_a_projects_hooks_that_cannot_be_used_are_an_error_before_anything_is_made(
    project: Project, line: str, why: str
) -> None:
    project.trusted("trusted")
    project.sets('moment = "turn_end"', line)
    async with await open_store("memory:") as store:
        with pytest.raises(BadSetting, match=why) as wrong:
            await AsyncConversation(Agent("scripted/echo"), store=store, workspace=project.root).run("hi")
        assert str(project.root / ".forkpoint" / "config.toml") in str(wrong.value)
        assert (await store.conversations()).items == ()
