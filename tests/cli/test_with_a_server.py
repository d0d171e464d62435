"""Every command works with a server's address as ``--store``, and says what it says of a store of one's own."""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.cli.program import Program, agent, one_line
from tests.conversation.support.homes import RemoteHome

from forkpoint import Agent, Conversation, SubAgents, TurnCancelled, Window, tool
from forkpoint.cli.app import app
from forkpoint.errors import ForkpointError
from forkpoint.testing import Fault, Reply, ScriptedCall

OVERLOADED = Reply("", fault=Fault("overloaded"))
RESTARTS = Reply(
    calls=(ScriptedCall("restart", '{"build": 7}', "call_a"), ScriptedCall("restart", '{"build": 8}', "call_b"))
)

TRIED = {
    "list": "test_list_show_tree_and_verify_give_the_same_documents_as_the_servers_file",
    "show": "test_list_show_tree_and_verify_give_the_same_documents_as_the_servers_file",
    "tree": "test_list_show_tree_and_verify_give_the_same_documents_as_the_servers_file",
    "verify": "test_list_show_tree_and_verify_give_the_same_documents_as_the_servers_file",
    "usage": "test_list_show_tree_and_verify_give_the_same_documents_as_the_servers_file",
    "run": "test_run_begins_and_goes_on",
    "ask": "test_ask_changes_nothing",
    "fork": "test_fork_and_rewind",
    "rewind": "test_fork_and_rewind",
    "keep": "test_branches_are_gone_on_with_compared_brought_kept_and_renamed",
    "diff": "test_branches_are_gone_on_with_compared_brought_kept_and_renamed",
    "bring": "test_branches_are_gone_on_with_compared_brought_kept_and_renamed",
    "rename": "test_branches_are_gone_on_with_compared_brought_kept_and_renamed",
    "go-on": "test_branches_are_gone_on_with_compared_brought_kept_and_renamed",
    "steer": "test_a_turn_that_waits_is_steered",
    "retry": "test_retry_and_resume",
    "resume": "test_retry_and_resume",
    "approve": "test_approve_deny_and_discard",
    "deny": "test_approve_deny_and_discard",
    "approvals": "test_approvals_are_given_listed_and_revoked",
    "discard": "test_approve_deny_and_discard",
    "cancel": "test_cancel_stops_a_turn_that_the_server_runs",
    "describe": "test_describe_and_delete",
    "delete": "test_describe_and_delete",
    "collect": "test_collect_says_what_went",
    "anchor": "test_an_anchor_of_the_server_is_kept_elsewhere",
    "backup": "test_a_server_is_backed_up_and_restored_on_its_own_machine",
    "restore": "test_a_server_is_backed_up_and_restored_on_its_own_machine",
    "hold": "test_what_is_held_is_not_erased",
    "release": "test_what_is_held_is_not_erased",
    "erase": "test_what_is_held_is_not_erased",
    "erasures": "test_what_is_held_is_not_erased",
    "budget": "test_a_budget_is_set_shown_and_removed",
    "export": "test_export_and_import",
    "import": "test_export_and_import",
    "request": "test_request_shows_what_is_sent",
    "why": "test_why_says_the_same_as_beside_the_store",
    "doctor": "test_doctor_says_how_the_server_is",
    "chat": "test_chat_from_a_pipe",
    "agents": "test_agents_are_spawned_told_listed_waited_for_and_closed",
    "condense": "test_condense_sums_up_what_is_older",
    "config": "test_a_servers_file_is_put_into_the_store_that_the_server_has",
}
NEEDS_NONE = {"completion", "demo", "serve", "keys", "local", "skills", "templates", "trust"}

_names = itertools.count()


@tool(risky=True)
def restart(build: int) -> str:
    """Restarts a build."""
    return f"{build} restarted"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteHome]:
    """One server for all tests here; each has conversations of its own."""
    home = RemoteHome(tmp_path_factory.mktemp("server"))
    yield home
    home.server.stop()


@pytest.fixture
def forkpoint(tmp_path: Path, server: RemoteHome) -> Program:
    program = Program(tmp_path)
    program.environment["FORKPOINT_STORE"] = f"sqlite:///{tmp_path / 'not-this-one.db'}"
    return program


@pytest.fixture
def at(server: RemoteHome) -> tuple[str, str]:
    """The server, as commands are told of it."""
    return "--store", server.store


def fresh(name: str) -> str:
    return f"{name}-{next(_names)}"


def talk(server: RemoteHome, answerer: Agent, *messages: str) -> str:
    """A conversation on the server in which this was said, as far as it went. Gives its name."""
    name = fresh("talk")
    with Conversation(server.agent(answerer), conversation_id=name, store=server.store) as conversation:
        for message in messages:
            try:
                conversation.run(message)
            except ForkpointError:
                break
    return name


def texts(server: RemoteHome, name: str) -> list[str]:
    with Conversation.open(name, bind=False, store=server.file) as conversation:
        return [turn.text for turn in conversation.turns().items if turn.outcome == "committed"]


def test_every_command_is_tried_with_a_server() -> None:
    commands = typer.main.get_group(app).commands.keys() - NEEDS_NONE
    assert commands == TRIED.keys(), "try each command with a server's address here, and name its test"
    assert all(test in globals() for test in TRIED.values())


def test_a_servers_file_is_put_into_the_store_that_the_server_has(forkpoint: Program, at: tuple[str, str]) -> None:
    done = forkpoint.run("config", "show", *at)
    assert done.returncode == 2
    assert "name the store that it has" in " ".join(done.stderr.split())


def test_a_budget_is_set_shown_and_removed(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = talk(server, agent(""), "one")
    forkpoint.json("budget", name, "--tokens", "5000", "--turns", "3", "--family", *at)
    (found,) = forkpoint.json("budget", name, *at)["items"]
    assert found == forkpoint.json("budget", name, "--store", f"sqlite:///{server.file}")["items"][0]
    assert (found["limits"], found["left"]["turns"]) == ({"tokens": 5000, "turns": 3}, 2)
    assert forkpoint.json("budget", name, "--remove", "--family", *at) == {"items": []}


def test_list_show_tree_and_verify_give_the_same_documents_as_the_servers_file(
    forkpoint: Program, server: RemoteHome, at: tuple[str, str]
) -> None:
    name = talk(server, agent(""), "one", "two")
    with Conversation.open(name, bind=False, store=server.store) as source:
        source.describe(title="Builds", tags={"kind": name})
        source.fork(conversation_id=f"{name}-fork").close()
    here = ("--store", f"sqlite:///{server.file}")
    for command in (
        ("list", "--tag", f"kind={name}"),
        ("show", name, "--events", "--turns"),
        ("tree", name),
        ("verify", name),
        ("usage",),
    ):
        there = forkpoint.json(*command, *at)
        assert there == forkpoint.json(*command, *here), command
    assert [one["name"] for one in forkpoint.json("list", "--tag", f"kind={name}", *at)["items"]] == [name]
    assert name in forkpoint.text("show", name, *at)
    assert "nobody" in forkpoint.run("show", "nobody", *at).stderr


def test_run_begins_and_goes_on(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = fresh("run")
    turn = forkpoint.json("run", "-c", name, "--agent", "echo", "one", *at)
    assert (turn["outcome"], turn["text"]) == ("committed", "You said: one")
    assert forkpoint.text("run", "-c", name, "-q", "two", *at).strip() == "You said: two"
    again = [forkpoint.json("run", "-c", name, "--key", "k", "three", *at)["id"] for _ in range(2)]
    assert again[0] == again[1]
    assert forkpoint.json("run", "--model", "scripted/echo", "alone", *at)["text"] == "You said: alone"
    assert texts(server, name) == ["You said: one", "You said: two", "You said: three"]


def test_ask_changes_nothing(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = talk(server, agent(""), "one")
    assert forkpoint.json("ask", name, "two", *at)["text"] == "You said: two"
    assert texts(server, name) == ["You said: one"]


def test_fork_and_rewind(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = talk(server, agent(""), "one", "two", "three")
    fork = forkpoint.json("fork", name, "--name", f"{name}-fork", "--title", "T", "--inherit-cache", *at)
    assert (fork["name"], fork["title"], fork["cache"]["inherited_from"]) == (f"{name}-fork", "T", lineage(fork))
    other = forkpoint.json("fork", name, "--model", "scripted/echo", "--instructions", "Be brief.", *at)
    assert other["model"] == "scripted/echo"
    forkpoint.json("rewind", name, "--turns", "2", *at)
    assert texts(server, name) == ["You said: one"]
    assert len(texts(server, f"{name}-fork")) == 3
    kinds = [one["lineage"]["kind"] for one in family(forkpoint.json("tree", name, *at))]
    assert sorted(kinds) == ["aside", "fork", "fork", "root"]


def test_branches_are_gone_on_with_compared_brought_kept_and_renamed(
    forkpoint: Program, server: RemoteHome, at: tuple[str, str]
) -> None:
    name = talk(server, agent(""), "one", "two")
    with Conversation.open(name, bind=False, store=server.file) as conversation:
        asked = conversation.events(kinds=["user_message"])[-1].id
    other = forkpoint.json("fork", name, "--at", str(asked), "--name", f"{name}-other", *at)["name"]
    assert forkpoint.json("go-on", other, *at)["text"] == "You said: two"
    assert forkpoint.json("diff", name, other, *at)["ancestor"] == str(asked)
    assert forkpoint.json("bring", name, other, *at)["what"] == "answer"
    kept = forkpoint.json("keep", name, other, *at)
    assert texts(server, name) == ["You said: one", "", "You said: two"]  # the first part of a turn has no answer
    assert kept["aside"]["lineage"]["kind"] == "aside"
    assert forkpoint.json("rename", name, f"{name}-new", *at)["name"] == f"{name}-new"


def test_a_turn_that_waits_is_steered(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    waits = agent(fresh("cli-steered"), RESTARTS, Reply("Done."), tools=[restart], approval="risky")
    name = talk(server, waits, "Restart both.")
    assert not forkpoint.json("steer", name, "And be quick.", *at)["delivered"]
    approved = forkpoint.json("approve", name, *forkpoint.seen(name, *at), *at)
    assert [one["delivered"] for one in approved["steered"]] == [True]


def test_retry_and_resume(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    for verb in ("retry", "resume"):
        script = fresh("cli-tries")
        name = talk(server, agent(script, Reply("Hello."), OVERLOADED, Reply("At last.")), "hi", "again")
        turn = forkpoint.json(verb, name, *at)
        assert (turn["outcome"], turn["text"]) == ("committed", "At last.")
        assert texts(server, name) == ["Hello.", "At last."]
        refused = forkpoint.run(verb, name, *at)
        assert refused.returncode == 1
        assert verb in one_line(refused.stderr)


def test_approvals_are_given_listed_and_revoked(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    answerer = agent(fresh("allowed"), RESTARTS, Reply("Up."), tools=[restart], approval="risky")
    name = talk(server, answerer, "Do it.")
    first = forkpoint.seen(name, *at)[:4]
    assert forkpoint.json("approve", name, *first, "--always", "tool", *at)["outcome"] == "committed"
    (rule,) = forkpoint.json("approvals", name, *at)["items"]
    assert rule["id"] in forkpoint.text("approvals", name, *at)
    assert forkpoint.json("approvals", name, "--revoke", rule["id"], "--by", "ann", *at)["revoked_by"] == "ann"
    assert forkpoint.json("approvals", name, *at) == {"items": []}


def test_approve_deny_and_discard(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    def waiting() -> str:
        answerer = agent(fresh("cli-waits"), RESTARTS, Reply("Done."), tools=[restart], approval="risky")
        return talk(server, answerer, "Restart both.")

    name = waiting()
    assert "call_a" in forkpoint.text("show", name, "--turns", *at)
    approved = forkpoint.json("approve", name, "--by", "ann", *forkpoint.seen(name, *at), *at)
    assert (approved["text"], [call["status"] for call in approved["calls"]]) == ("Done.", ["done", "done"])
    name = waiting()
    first = forkpoint.seen(name, *at)[:4]
    assert forkpoint.json("approve", name, *first, *at, status=3)["outcome"] == "awaiting_approval"
    denied = forkpoint.json("deny", name, "--reason", "Not now.", *at)
    assert [call["status"] for call in denied["calls"]] == ["done", "denied"]
    name = waiting()
    assert forkpoint.json("discard", name, *at)["outcome"] == "cancelled"
    assert texts(server, name) == []


def test_cancel_stops_a_turn_that_the_server_runs(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name, hangs = fresh("talk"), Reply("x", piece=1, fault=Fault("hang", after=1))
    answerer = server.agent(agent(fresh("cli-hangs"), hangs))
    with (
        ThreadPoolExecutor() as threads,
        Conversation(answerer, conversation_id=name, store=server.store) as conversation,
    ):
        conversation.describe(title="It hangs")
        running = threads.submit(conversation.run, "go")
        while conversation.info().status != "running":
            time.sleep(0.01)
        cancelled = forkpoint.json("cancel", name, *at)
        assert (cancelled["outcome"], cancelled["name"]) == ("cancelled", name)
        with pytest.raises(TurnCancelled):
            running.result()
    refused = forkpoint.run("cancel", name, *at)
    assert (refused.returncode, "none is running" in one_line(refused.stderr)) == (1, True)


def test_export_and_import(forkpoint: Program, server: RemoteHome) -> None:
    name, at = f"copy-{next(_names)}", ("--store", server.store)
    with Conversation("echo", conversation_id=name, store=server.store) as made:
        made.run("Hello")
    forkpoint.text("export", name, "-o", "talk.jsonl", *at)
    assert forkpoint.text("verify", "talk.jsonl").endswith("of 1 conversation: as it was written\n")
    assert forkpoint.json("import", "talk.jsonl")["new"] == [made.id]
    assert not forkpoint.json("import", "talk.jsonl", *at)["changed"]


def test_describe_and_delete(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = talk(server, agent(""), "one")
    forkpoint.text("describe", name, "--title", "New", "--tag", "kind=ci", *at)
    info = forkpoint.json("describe", name, "--tag", "more=x", "--untag", "kind", *at)
    assert (info["title"], info["tags"]) == ("New", {"more": "x", "title": "New"})
    forkpoint.text("delete", name, "--yes", *at)
    gone = forkpoint.run("show", name, *at)
    assert gone.returncode == 1
    assert name in gone.stderr


def test_condense_sums_up_what_is_older(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = talk(server, agent("").replace(condenser=Window(events=100)), "one", "two", "three", "four")
    said = forkpoint.json("condense", name, *at)
    assert said["condensed"]
    assert said["kept_from"] > 1
    with Conversation.open(name, bind=False, store=server.file) as conversation:
        assert [event.kind for event in conversation.events()][-1] == "condensation"


def test_request_shows_what_is_sent(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = talk(server, agent(""), "one", "two")
    here = ("--store", f"sqlite:///{server.file}")
    for command in (("request", name), ("request", name, "three", "--diff")):
        assert forkpoint.text(*command, *at) == forkpoint.text(*command, *here), command
    assert '"three"' in forkpoint.text("request", name, "three", "--body", *at)


def test_why_says_the_same_as_beside_the_store(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = talk(server, agent(""), "one", "two")
    here = ("--store", f"sqlite:///{server.file}")
    assert forkpoint.text("why", name, *at) == forkpoint.text("why", name, *here)
    assert "the provider reports no cached tokens" in forkpoint.text("why", name, *at)


def test_doctor_says_how_the_server_is(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    said = one_line(forkpoint.run("doctor", *at).stdout)
    assert server.store in said
    assert "is ready" in said
    nobody = forkpoint.run("doctor", "--store", "http://127.0.0.1:9")
    assert nobody.returncode == 1


def test_chat_from_a_pipe(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = fresh("chat")
    done = forkpoint.run("chat", name, "--agent", "echo", *at, stdin="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    assert texts(server, name) == ["You said: one", "You said: two"]
    assert "You said: two" in done.stdout


def test_nobody_there_is_one_line_and_no_traceback(forkpoint: Program) -> None:
    done = forkpoint.run("list", "--store", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "http://127.0.0.1:9" in done.stderr


def lineage(info: dict[str, Any]) -> str:
    source: str = info["lineage"]["source"]
    return source


def family(tree: Any) -> list[dict[str, Any]]:
    """All conversations of a tree, as its document has them."""
    found: list[dict[str, Any]] = []
    todo = [tree]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            if "lineage" in one:
                found.append(one)
            todo += [value for value in one.values() if isinstance(value, list | dict)]
    return found


def test_agents_are_spawned_told_listed_waited_for_and_closed(
    forkpoint: Program, server: RemoteHome, at: tuple[str, str]
) -> None:
    reader = Agent("scripted/echo", name=fresh("reader"))
    name = talk(server, agent("", sub_agents=SubAgents(agents={"reader": reader})), "one")
    words = ("spawn", name, "Read.", "--agent", "reader", "--nickname", "scout")
    assert forkpoint.text("agents", *words, *at) == "You said: Read.\n"
    assert forkpoint.text("agents", "send", name, "/root/scout", "More.", *at) == "You said: More.\n"
    listed = forkpoint.json("agents", name, *at)
    assert listed == forkpoint.json("agents", name, "--store", f"sqlite:///{server.file}")
    assert [one["answer"] for one in listed["items"]] == ["You said: More."]
    assert forkpoint.json("agents", "wait", name, "scout", *at)["text"] == "You said: More."
    assert forkpoint.text("agents", "close", name, "scout", *at) == "Closed /root/scout.\n"
    assert "closed" in forkpoint.run("agents", "send", name, "scout", "Hi", *at).stderr


def test_an_anchor_of_the_server_is_kept_elsewhere(
    forkpoint: Program, server: RemoteHome, at: tuple[str, str], tmp_path: Path
) -> None:
    talk(server, agent(""), "one")
    assert forkpoint.json("anchor", "-o", "witness", *at)["tenant"] == "default"
    assert forkpoint.json("verify", "--anchor", "witness", *at)["flaws"] == []


def test_a_server_is_backed_up_and_restored_on_its_own_machine(forkpoint: Program, at: tuple[str, str]) -> None:
    assert "on_a_server" in forkpoint.run("backup", "copy.db", *at, "--json").stderr
    assert "on_a_server" in forkpoint.run("restore", "copy.db", "--forget-erasures", *at, "--json").stderr


def test_what_is_held_is_not_erased(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    name = talk(server, agent(""), "a secret")
    forkpoint.text("hold", name, "--reason", "a case", *at)
    erase = ("erase", name, "--all", "--reason", "a request", "--yes", *at)
    assert "a case" in forkpoint.run(*erase).stderr
    forkpoint.text("release", name, *at)
    forkpoint.text(*erase)
    assert "a request" in forkpoint.text("erasures", *at)


def test_collect_says_what_went(forkpoint: Program, server: RemoteHome, at: tuple[str, str]) -> None:
    assert forkpoint.json("collect", "--dry-run", *at)["pending"] == []
    assert forkpoint.text("collect", *at).startswith("Removed ")
    assert "compact" in forkpoint.run("collect", "--compact", *at).stderr
