"""`Conversation`: the same as `AsyncConversation` without await, in any thread, under any loop, and after Ctrl-C."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, assert_type

import pytest
from tests.conversation.support.agents import PATIENCE, Answers, Watcher, agent_of, asks, call, said
from tests.conversation.support.homes import Home

from forkpoint import AsyncConversation, Conversation, TurnCancelled, TurnFailed, tool
from forkpoint.conversation import Info, SyncTurnStream, Turn, TurnStream
from forkpoint.errors import BadArgument, ConversationClosed, UseAsync
from forkpoint.events import Event
from forkpoint.llm import TextPiece
from forkpoint.paging import Page
from forkpoint.testing import Fault, Reply

ROOT = Path(__file__).parents[2]
HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals and no fork")


# The same surface.


def surface(kind: type) -> dict[str, Any]:
    """The public names of a class, with what they are called with."""
    found: dict[str, Any] = {}
    for name in dir(kind):
        if name.startswith("_") or name == "over":  # a server's own way in
            continue
        member = inspect.getattr_static(kind, name)
        if isinstance(member, property):
            found[name] = "property"
        else:
            parameters = inspect.signature(getattr(kind, name)).parameters
            found[name] = {
                parameter.name: (parameter.kind, parameter.default, str(parameter.annotation))
                for parameter in parameters.values()
            }
    return found


def test_every_method_of_one_is_there_in_the_other_with_the_same_parameters() -> None:
    theirs, ours = surface(AsyncConversation), surface(Conversation)
    assert ours.keys() == theirs.keys(), "a method is missing"
    assert len(ours) > 30
    for name, parameters in theirs.items():
        assert ours[name] == parameters, f"{name} differs"


def test_both_are_made_with_the_same_parameters_and_say_the_same_of_them() -> None:
    assert inspect.signature(AsyncConversation.__init__) == inspect.signature(Conversation.__init__)
    for name in surface(Conversation):
        ours, theirs = inspect.getdoc(getattr(Conversation, name)), inspect.getdoc(getattr(AsyncConversation, name))
        assert bool(ours) == bool(theirs), name


def test_what_is_awaited_there_is_returned_here() -> None:
    for name in surface(AsyncConversation):
        theirs, ours = getattr(AsyncConversation, name), getattr(Conversation, name)
        assert not inspect.iscoroutinefunction(ours), name
        if inspect.iscoroutinefunction(theirs):
            returned = inspect.signature(ours, eval_str=True).return_annotation
            assert returned == inspect.signature(theirs, eval_str=True).return_annotation, name


def test_an_editor_shows_the_words_of_the_async_method_and_nobody_takes_it_for_a_coroutine() -> None:
    for name in ("open", "list", "run", "fork", "rewind", "approve", "spawn_agent", "events"):
        ours, theirs = getattr(Conversation, name), getattr(AsyncConversation, name)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs)
        assert (ours.__name__, ours.__qualname__) == (name, f"Conversation.{name}")
        assert not inspect.iscoroutinefunction(inspect.unwrap(ours)), f"{name}: whoever unwraps it would await it"


def test_a_type_checker_sees_what_each_method_takes_and_returns() -> None:
    """mypy checks this file, too: that a type is as asserted, and that each ignored error is there."""

    class Mine(Conversation):
        """A program's own kind of conversation."""

    with Mine("scripted/echo", store="memory:", conversation_id="mine") as conversation:
        turn = conversation.run("Hello", key="once", supersede=False)
        assert_type(turn, Turn)
        assert_type(conversation.events(after=1), list[Event])
        assert_type(Mine.list(store="memory:", limit=3), Page[Info])
        with conversation.fork(title="F") as fork, Mine.open("mine", store="memory:") as again:
            assert_type(fork, Mine)
            assert_type(again, Mine)
            assert isinstance(fork, Mine)
            assert isinstance(again, Mine)
        assert_type(conversation.rewind(at=turn), Mine | None)
        with conversation.run_stream("Hello", supersede=True) as stream:
            assert_type(stream, SyncTurnStream)
        with pytest.raises(TypeError, match="stores"):
            Mine("scripted/echo", stores="memory:")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="keys"), conversation.run_stream("Hello", keys=""):  # type: ignore[call-arg]
            pass
        with pytest.raises(TypeError, match="keys"):
            conversation.run("Hello", keys="once")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="titles"):
            conversation.fork(titles="F")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="id"):
            Mine.open(store="memory:")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="limits"):
            Mine.list(limits=3)  # type: ignore[call-arg]
        with pytest.raises(BadArgument, match="after='1'"):
            conversation.events(after="1")  # type: ignore[arg-type]


def test_a_stream_of_one_has_what_a_stream_of_the_other_has() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(SyncTurnStream) == public(TurnStream) | {"turn"}


# Everything works.


def test_a_conversation_without_await_does_everything(home: Home) -> None:
    @tool
    def look() -> str:
        """Looks."""
        return "seen"

    overloaded = Reply("x", fault=Fault("overloaded"))
    agent = agent_of(["one", overloaded, overloaded, "two", "aside", asks(call("look")), "three"], tools=[look])
    with Conversation(
        home.agent(agent), store=home.store, title="T", tags={"a": "b"}, conversation_id="sync"
    ) as conversation:
        assert (conversation.name, conversation.title(), conversation.tags()["a"]) == ("sync", "T", "b")
        assert conversation.run("1").text == "one"
        conversation.send_message("2")
        assert len(conversation.pending) == 1
        with pytest.raises(TurnFailed):
            conversation.run()
        with pytest.raises(TurnFailed):
            conversation.retry()
        assert conversation.resume().text == "two"
        assert conversation.ask("?").text == "aside"
        assert conversation.run("3").calls[0].result == "seen"
        conversation.update_state({"x": 1})
        assert conversation.agent_state() == {"x": 1}
        assert conversation.describe(title="Other").title == "Other"
        assert conversation.status() == "idle"
        assert conversation.stats().spent.calls == 7
        assert [turn.outcome for turn in conversation.turns().items] == [
            "committed",
            "failed",
            "committed",
            "committed",
        ]
        assert conversation.turn(conversation.turns().items[0].id).text == "one"
        assert conversation.request("4").body
        assert conversation.cache().key
        assert conversation.verify().ok
        fork = conversation.fork(title="F")
        assert isinstance(fork, Conversation)
        assert fork.events() == conversation.events()
        aside = conversation.rewind(before=conversation.turns().items[-1])
        assert isinstance(aside, Conversation)
        assert conversation.rewind(at=conversation.events()[-1]) is None
        assert len(conversation.tree()[0].branches) == 2
        assert {info.id for info in Conversation.list(store=home.store).items} == {conversation.id, fork.id, aside.id}
        with Conversation.open("sync", agent=home.agent(agent), store=home.store) as again:
            assert again.id == conversation.id
            assert again.agent == home.at_hand(agent)
        fork.delete()
        for one in (fork, aside):
            one.close()


def test_approvals_without_await(home: Home) -> None:
    @tool(risky=True)
    def delete() -> str:
        """Deletes."""
        return "gone"

    answers: Answers = [asks(call("delete")), "one", asks(call("delete")), "two", asks(call("delete"))]
    with Conversation(
        home.agent(agent_of(answers, tools=[delete], approval="risky")), store=home.store
    ) as conversation:
        assert conversation.run("1").outcome == "awaiting_approval"
        assert conversation.approve(by="ann").text == "one"
        conversation.run("2")
        assert conversation.deny(reason="no").calls[0].status == "denied"
        conversation.run("3")
        assert conversation.discard().outcome == "cancelled"


def test_a_stream_without_await(home: Home) -> None:
    with Conversation(
        home.agent(agent_of([Reply("Hello, world.", piece=5), HANGS, "x"])), store=home.store
    ) as conversation:
        with conversation.run_stream("hi") as stream:
            updates = list(stream)
        assert isinstance(updates[-1], Turn)
        assert stream.turn == updates[-1]
        assert "".join(update.text for update in updates if isinstance(update, TextPiece)) == "Hello, world."
        with conversation.run_stream("leave") as stream:
            for update in stream:
                if isinstance(update, TextPiece):
                    break
        assert conversation.turns().items[-1].outcome == "cancelled"


def test_what_the_reader_of_a_stream_raises_is_raised_as_itself(home: Home) -> None:
    with Conversation(home.agent(agent_of([HANGS])), store=home.store) as conversation:

        def read() -> None:
            with conversation.run_stream("hi") as stream:
                for update in stream:
                    if isinstance(update, TextPiece):
                        raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            read()
        assert conversation.turns().items[-1].outcome == "cancelled"


def test_a_stream_that_fails_raises_where_it_is_read(home: Home) -> None:
    with (
        Conversation(home.agent(agent_of([Reply("x", fault=Fault("overloaded"))])), store=home.store) as conversation,
        conversation.run_stream("hi") as stream,
        pytest.raises(TurnFailed),
    ):
        list(stream)


def test_use_after_close_says_so_and_closing_twice_is_fine(home: Home) -> None:
    conversation = Conversation(home.agent(agent_of(["hi"])), store=home.store)
    conversation.run("hello")
    conversation.close()
    conversation.close()
    with pytest.raises(ConversationClosed):
        conversation.run("more")
    with pytest.raises(ConversationClosed):
        conversation.events()
    with conversation.run_stream("more") as stream, pytest.raises(ConversationClosed):
        next(stream)


# Threads and loops.


def test_it_works_while_a_loop_runs_in_the_same_thread(home: Home) -> None:
    async def cell() -> str:
        with Conversation(home.agent(agent_of(["hi", "ho"])), store=home.store) as conversation:
            conversation.run("hello")
            with conversation.run_stream("again") as stream:
                updates = list(stream)
            assert isinstance(updates[-1], Turn)
            return updates[-1].text

    assert asyncio.run(cell()) == "ho"


def test_many_threads_use_it_at_once(tmp_path: Path) -> None:
    agent = agent_of(lambda heard: Reply(f"to {heard.text}"))

    def work(n: int) -> tuple[str, list[tuple[str, str]]]:
        with Conversation(agent, store=tmp_path / "a.db") as conversation:
            for turn in range(3):
                conversation.run(f"{n}.{turn}")
            return conversation.id, said(conversation.events())

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(16)))
    for n, (_, words) in enumerate(found):
        expected = [[("user", f"{n}.{turn}"), ("assistant", f"to {n}.{turn}")] for turn in range(3)]
        assert words == [pair for pairs in expected for pair in pairs]
    assert len({id for id, _ in found}) == 16


def test_one_object_may_be_used_from_several_threads(home: Home) -> None:
    started = threading.Event()

    def told(update: Any) -> None:
        if isinstance(update, TextPiece):
            started.set()

    with (
        Conversation(home.agent(agent_of([HANGS])), store=home.store, callbacks=[told]) as conversation,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(conversation.run, "hello")
        assert started.wait(PATIENCE)
        assert conversation.status() == "running"
        assert conversation.cancel().outcome == "cancelled"
        with pytest.raises(TurnCancelled):
            running.result(PATIENCE)


def test_in_its_own_thread_it_says_use_async_and_does_not_wait_for_itself() -> None:
    heard: list[Any] = []

    @tool
    async def runs_another() -> str:
        """Uses the synchronous API inside the loop."""
        for act in (conversation.status, lambda: conversation.run("x"), lambda: Conversation.list(store="memory:")):
            try:
                act()
            except UseAsync as error:
                heard.append(str(error))
        return "ok"

    def told(update: Any) -> None:
        if isinstance(update, TextPiece):
            try:
                conversation.events()
            except UseAsync as error:
                heard.append(str(error))
            try:
                with conversation.run_stream("x"):
                    pass
            except UseAsync as error:
                heard.append(str(error))

    agent = agent_of([asks(call("runs_another")), "x"], tools=[runs_another])
    with Conversation(agent, store="memory:", callbacks=[told]) as conversation:
        assert conversation.run("go").calls[0].result == "ok"
    assert len(heard) == 5
    assert all("AsyncConversation" in words for words in heard)


def test_a_plain_tool_may_use_another_conversation() -> None:
    inner = agent_of(["from inside"])

    @tool
    def asks_another() -> str:
        """Runs in a thread of its own, so it may wait."""
        with Conversation(inner, store="memory:") as other:
            return other.run("hello").text

    with Conversation(
        agent_of([asks(call("asks_another")), "x"], tools=[asks_another]), store="memory:"
    ) as conversation:
        assert conversation.run("go").calls[0].result == "from inside"


def test_callbacks_are_told_in_one_thread(home: Home) -> None:
    threads: set[int] = set()
    watcher = Watcher()

    def told(_: Any) -> None:
        threads.add(threading.get_ident())

    with Conversation(home.agent(agent_of(["hi"])), store=home.store, callbacks=[told, watcher]) as conversation:
        conversation.run("hello")
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


# Processes: Ctrl-C, fork, and the end.


def script(code: str) -> list[str]:
    """A program with this code, after what all of them need."""
    start = """
        import os, sys, threading, time
        from forkpoint import Agent, AsyncConversation, Conversation, LLM, tool
        from forkpoint.errors import *
        from forkpoint.llm import TextPiece
        from forkpoint.testing import Fault, Reply, Script, ScriptedCall

        store = sys.argv[1]
        HANGS = Reply("never heard", piece=1, fault=Fault("hang", after=1))

        def agent(*replies, **settings):
            return Agent(LLM(Script(list(replies)).register("here")), **settings)
    """
    return [sys.executable, "-W", "error", "-c", textwrap.dedent(start) + textwrap.dedent(code)]


@contextmanager
def started(code: str, file: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs, with everything that it forks; whatever of it hangs is ended with the block."""
    command = [*script(code), f"sqlite:///{file}", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, cwd=ROOT, start_new_session=True) as process:
        try:
            yield process
        finally:
            if hasattr(os, "killpg"):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its own group, which nobody else is in
            process.kill()


def run_script(code: str, file: Path) -> str:
    with started(code, file) as process:
        told, wrong = process.communicate(timeout=PATIENCE)
    assert (process.returncode, wrong) == (0, ""), wrong
    return told


@needs_posix
@pytest.mark.parametrize("how", ["run", "stream", "ask"])
def test_ctrl_c_cancels_the_turn_and_waits_for_its_outcome(tmp_path: Path, how: str) -> None:
    code = """
        def told(update):
            if isinstance(update, TextPiece):
                print("ready", flush=True)

        conversation = Conversation(agent(Reply("first"), HANGS), conversation_id="c", store=store, callbacks=[told])
        conversation.run("one")
        try:
            if sys.argv[2] == "run":
                conversation.run("two")
            elif sys.argv[2] == "ask":
                conversation.ask("two")
            else:
                with conversation.run_stream("two") as stream:
                    for _ in stream:
                        pass
        except KeyboardInterrupt:
            turns = conversation.turns().items
            print("interrupted", [turn.outcome for turn in turns], conversation.status(), flush=True)
    """
    with started(code, tmp_path / "a.db", how) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
        process.send_signal(signal.SIGINT)
        told, wrong = process.communicate(timeout=PATIENCE)
    assert (process.returncode, wrong) == (0, "")
    outcomes = "['committed']" if how == "ask" else "['committed', 'cancelled']"
    assert told == f"interrupted {outcomes} idle\n"


@needs_posix
def test_ctrl_c_while_a_stream_is_being_entered_leaves_no_turn_running(tmp_path: Path) -> None:
    code = """
        import signal

        def told(update):
            if isinstance(update, TextPiece):
                os.kill(os.getpid(), signal.SIGINT)  # hardly anything of the block has been reached yet

        conversation = Conversation(agent(HANGS), conversation_id="c", store=store, callbacks=[told])
        try:
            with conversation.run_stream("one") as stream:
                for _ in stream:
                    pass
        except KeyboardInterrupt:
            print([turn.outcome for turn in conversation.turns().items], conversation.status(), flush=True)
    """
    assert run_script(code, tmp_path / "a.db") == "['cancelled'] idle\n"


@needs_posix
def test_ctrl_c_that_comes_at_once_leaves_no_turn_running_either(tmp_path: Path) -> None:
    code = """
        import signal
        from forkpoint.conversation import TurnStarted

        moment = None

        def told(update):
            if isinstance(update, moment):
                os.kill(os.getpid(), signal.SIGINT)  # the main thread may not even wait yet

        conversation = Conversation(agent(*[HANGS] * 99), conversation_id="c", store=store, callbacks=[told])
        for n in range(60):
            moment = TextPiece if n % 2 else TurnStarted
            try:
                if n % 3:
                    conversation.run("one")
                else:
                    with conversation.run_stream("one") as stream:
                        for _ in stream:
                            pass
            except KeyboardInterrupt:
                moment = ()
                assert conversation.status() == "idle", n
        outcomes = {turn.outcome for turn in conversation.turns(limit=99).items}
        print(len(conversation.turns(limit=99).items), outcomes)
    """
    assert run_script(code, tmp_path / "a.db") == "60 {'cancelled'}\n"


@needs_posix
def test_ctrl_c_that_nobody_catches_ends_the_program_and_the_turn_is_cancelled(tmp_path: Path) -> None:
    code = """
        def told(update):
            if isinstance(update, TextPiece):
                print("ready", flush=True)

        Conversation(agent(HANGS), conversation_id="c", store=store, callbacks=[told]).run("one")
    """
    with started(code, tmp_path / "a.db") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, wrong = process.communicate(timeout=PATIENCE)
    assert process.returncode in (130, -signal.SIGINT, 1)
    assert "KeyboardInterrupt" in wrong
    with Conversation.open("c", bind=False, store=tmp_path / "a.db") as conversation:
        assert [turn.outcome for turn in conversation.turns().items] == ["cancelled"]


@needs_posix
def test_after_os_fork_old_objects_say_reopen_and_new_ones_work_in_the_child(tmp_path: Path) -> None:
    code = """
        conversation = Conversation(agent(*[Reply(str(n)) for n in range(9)]), store=store)
        unused = Conversation(conversation.agent, store=store)
        conversation.run("one")
        id = conversation.id
        child = os.fork()
        if child == 0:
            try:
                heard = []
                acts = (lambda: conversation.run("no"), conversation.events, conversation.fork, lambda: unused.ask("?"))
                for act in acts:
                    try:
                        act()
                    except ConversationClosed as error:
                        heard.append(error.code)
                assert heard == ["reopen_after_fork"] * 4, heard
                with Conversation.open(id, store=store) as again:
                    again.run("from the child")
                    assert len(again.events()) == 7, again.events()
                os._exit(0)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert conversation.run("from the parent").outcome == "committed"
        assert len(conversation.turns().items) == 3
        print("fine")
    """
    assert run_script(code, tmp_path / "a.db") == "fine\n"


@needs_posix
def test_in_a_child_of_os_fork_closing_an_old_object_does_no_harm(tmp_path: Path) -> None:
    code = """
        conversation = Conversation(agent(*[Reply(str(n)) for n in range(9)]), store=store)
        conversation.run("one")
        child = os.fork()
        if child == 0:
            conversation.close()
            conversation.close()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        print(conversation.run("two").outcome, len(conversation.turns().items))
    """
    assert run_script(code, tmp_path / "a.db") == "committed 2\n"


@needs_posix
def test_a_child_of_os_fork_that_ends_normally_does_no_harm(tmp_path: Path) -> None:
    code = """
        conversation = Conversation(agent(*[Reply(str(n)) for n in range(9)]), store=store)
        conversation.run("one")
        child = os.fork()
        if child == 0:
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        print(conversation.run("two").outcome, len(conversation.turns().items))
    """
    assert run_script(code, tmp_path / "a.db") == "committed 2\n"


@needs_posix
def test_after_os_fork_an_async_object_says_reopen_too(tmp_path: Path) -> None:
    code = """
        import anyio
        conversation = AsyncConversation(agent(Reply("x")), store=store)
        child = os.fork()
        if child == 0:
            async def use():
                try:
                    await conversation.run("no")
                except ConversationClosed as error:
                    return int(error.code != "reopen_after_fork")
                return 1
            os._exit(anyio.run(use))
        _, status = os.waitpid(child, 0)
        print(status)
    """
    assert run_script(code, tmp_path / "a.db") == "0\n"


@pytest.mark.parametrize("store", ["file", "memory"])
@pytest.mark.parametrize("what", ["nothing", "a turn", "a plain tool", "a stream", "an error", "a fork"])
def test_a_program_ends_cleanly_without_closing_anything(tmp_path: Path, store: str, what: str) -> None:
    code = """
        @tool
        def look() -> str:
            "Looks."
            return "seen"

        store = "memory:" if sys.argv[1].endswith("memory.db") else store
        asked = Reply(calls=(ScriptedCall("look"),))
        conversation = Conversation(agent(asked, Reply("done"), tools=[look]), conversation_id="c", store=store)
        what = "WHAT"
        if what in ("a turn", "a plain tool"):
            assert conversation.run("hello").text == "done"
        elif what == "a stream":
            stream = conversation.run_stream("hello")
            next(stream.__enter__())
        elif what == "an error":
            try:
                conversation.retry()
            except NoSuchTurn:
                pass
        elif what == "a fork":
            conversation.run("hello")
            conversation.fork()
        print("end")
    """
    assert run_script(code.replace("WHAT", what), tmp_path / f"{store}.db") == "end\n"
    if store == "file" and what == "a turn":
        with Conversation.open("c", bind=False, store=tmp_path / "file.db") as conversation:
            assert [turn.outcome for turn in conversation.turns().items] == ["committed"]


def test_a_program_that_ends_while_another_thread_runs_a_turn_leaves_its_outcome(tmp_path: Path) -> None:
    code = """
        started = threading.Event()

        def told(update):
            if isinstance(update, TextPiece):
                started.set()

        conversation = Conversation(agent(HANGS), conversation_id="c", store=store, callbacks=[told])

        def run():
            try:
                conversation.run("hello")
            except BaseException as error:
                pass

        threading.Thread(target=run, daemon=True).start()
        assert started.wait(10)
        print("end")
    """
    assert run_script(code, tmp_path / "a.db") == "end\n"
    with Conversation.open("c", bind=False, store=tmp_path / "a.db") as conversation:
        assert [turn.outcome for turn in conversation.turns().items] == ["cancelled"]
