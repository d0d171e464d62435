"""``forkpoint serve`` at the command line: what it refuses before it starts, and how it says where it listens."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.cli.program import Program, one_line
from tests.server.support.serving import free_port

from forkpoint.server.http.address import listen


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def refused(program: Program, *options: str, status: int = 1, **environment: str) -> str:
    """What it says when it does not even start."""
    done = program.run("serve", "--port", "0", *options, **environment)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert not list(program.folder.glob("store.db*")), "it has made a store"
    return one_line(done.stderr)


def test_help_names_every_option_and_says_how_it_stops(program: Program) -> None:
    said = program.text("serve", "--help")
    for option in ("--host", "--port", "--store", "--agents", "--keys", "--grace", "--max-turns", "--log-format"):
        assert option in said
    for option in ("--request-timeout", "--conversation-header", "--conversations-max", "--conversation-ttl"):
        assert option in said
    for option in ("--on-disconnect", "--system", "--strict", "--reasoning"):
        assert option in said
    assert "Ctrl-C or SIGTERM" in one_line(said)


@pytest.mark.parametrize(
    "options",
    [
        ("--port", "70000"),
        ("--log-format", "xml"),
        ("--max-turns", "0"),
        ("--grace", "-1"),
        ("--request-timeout", "0"),
        ("--conversations-max", "0"),
        ("--conversation-ttl", "-1"),
        ("--on-disconnect", "wait"),
        ("--system", "last"),
        ("--reasoning", "on"),
        ("--agents", "a.toml", "--model", "scripted/echo"),
    ],
)
def test_flags_that_make_no_sense_are_refused(program: Program, options: tuple[str, ...]) -> None:
    said = refused(program, *options, status=2)
    assert options[0] in said or options[-2] in said


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "it is not the name of an HTTP header"),
        ("=full", "it is not the name of an HTTP header"),
        ("X Chat", "it is not the name of an HTTP header"),
        ("X-Chat:", "it is not the name of an HTTP header"),
        ("X-Chät", "it is not the name of an HTTP header"),
        ("*", "it is not the name of an HTTP header"),
        ("authorization=full", "this header has another meaning already"),
        ("X-Chat=all", "is not of the form NAME, NAME=full or NAME=latest"),
        ("X-Chat=", "is not of the form NAME, NAME=full or NAME=latest"),
        ("x-other", "x-other is given twice"),
    ],
)
def test_a_header_that_cannot_name_conversations_is_refused_with_the_reason(
    program: Program, given: str, why: str
) -> None:
    options = ("--conversation-header", "X-Other=full", "--conversation-header", given)
    said = refused(program, "--model", "scripted/echo", *options, status=2)
    assert "--conversation-header" in said
    assert why in said


def test_it_does_not_listen_to_the_world_without_a_key(program: Program) -> None:
    for host in ("0.0.0.0", "::"):
        said = refused(program, "--model", "scripted/echo", "--host", host)
        assert said.startswith(f"error: Whoever can reach {host} could use this server")
    told = program.run("serve", "--model", "scripted/echo", "--host", "0.0.0.0", "--json")
    assert json.loads(told.stderr)["error"]["code"] == "open_to_the_world"


def test_without_keys_it_does_not_let_every_web_page_call(program: Program) -> None:
    origins = ("--cors-origin", "https://app.example", "--cors-origin", "*")
    said = refused(program, "--model", "scripted/echo", *origins, status=2)
    assert "--cors-origin" in said
    assert "name the origins, or use --keys" in said


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_a_file_of_keys_that_holds_none_is_refused(program: Program, content: str | None) -> None:
    if content is not None:
        (program.folder / "keys.json").write_text(content)
    said = refused(program, "--model", "scripted/echo", "--keys", "keys.json")
    assert said.startswith("error: keys.json cannot be used as the file of keys")


def test_a_key_variable_that_is_named_and_empty_is_refused(program: Program) -> None:
    unset = refused(program, "--model", "scripted/echo", "--key-env", "MY_KEY")
    empty = refused(program, "--model", "scripted/echo", "--key-env", "MY_KEY", MY_KEY=" ")
    short = refused(program, "--model", "scripted/echo", "--key-env", "MY_KEY", MY_KEY="abc")
    assert "MY_KEY cannot be the server's key: it is not set" in unset
    assert "MY_KEY cannot be the server's key: it is empty" in empty
    assert "abc" not in short


def test_a_models_key_variable_that_is_named_and_empty_is_refused(program: Program) -> None:
    options = ("--model", "openai/gpt-5.6", "--api-key-env", "MODEL_KEY")
    for said in (refused(program, *options), refused(program, *options, MODEL_KEY="")):
        assert "the environment variable MODEL_KEY, its key, is not set or empty" in said


def test_everything_that_is_wrong_with_a_file_of_agents_is_said_at_once(program: Program) -> None:
    (program.folder / "agents.toml").write_text('[agents.a]\nmodl = "x"\n[agents.b]\nagent = "nowhere:agent"\n')
    said = refused(program, "--agents", "agents.toml")
    assert "agents.a.modl: there is no such field" in said
    assert "agents.b.agent: nowhere:agent cannot be imported" in said
    assert "cannot be read" in refused(program, "--agents", "missing.toml")


def test_it_keeps_conversations_itself_and_in_no_other_server(program: Program) -> None:
    for said in (
        refused(program, "--model", "scripted/echo", "--store", "http://127.0.0.1:1", status=2),
        refused(program, "--model", "scripted/echo", status=2, FORKPOINT_STORE="http://127.0.0.1:1"),
    ):
        assert "http://127.0.0.1:1 is another server" in said
        assert "sqlite:///forkpoint.db" in said


def test_a_store_that_cannot_be_used_is_refused(program: Program) -> None:
    assert "cannot be written" in refused(program, "--model", "scripted/echo", "--store", "sqlite:////proc/x.db")


def test_a_port_that_is_taken_is_refused(program: Program) -> None:
    taken = listen("127.0.0.1", 0)
    port = str(taken.getsockname()[1])
    try:
        done = program.run("serve", "--model", "scripted/echo", "--port", port, "--json")
    finally:
        taken.close()
    assert done.returncode == 1
    told = json.loads(done.stderr)["error"]
    assert (told["code"], port in told["message"]) == ("address_taken", True)


@pytest.fixture
def started(program: Program) -> Iterator["list[subprocess.Popen[str]]"]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_it_takes_its_settings_from_the_environment_and_says_in_json_where_it_listens(
    program: Program, started: "list[subprocess.Popen[str]]"
) -> None:
    settings = {"FORKPOINT_MODEL": "scripted/echo", "PYTHONUNBUFFERED": ""}
    process = program.start("serve", "--port", "0", "--json", "--log-level", "debug", **settings)
    started.append(process)
    assert process.stdout is not None
    said = ""
    while not said.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        said += line
    url = json.loads(said)["url"]
    agents = httpx2.get(f"{url}/api/agents").json()["items"]
    assert [(one["name"], one["model"]) for one in agents] == [("echo", "scripted/echo")]
    made = httpx2.post(f"{url}/api/conversations", headers={"X-Request-Id": "mine"})
    assert made.status_code == 201
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    lines = [json.loads(line) for line in err.splitlines()]  # without a terminal the log is JSON, all of it
    assert any(line.get("request_id") == "mine" for line in lines)
    assert (program.folder / "store.db").exists()
    assert made.json()["id"] in program.text("list", "--json")


def test_it_tells_people_where_it_listens_with_a_log_of_text_and_takes_its_key_from_a_variable(
    program: Program, started: "list[subprocess.Popen[str]]"
) -> None:
    port, key = free_port(), os.urandom(16).hex()
    options = ["--port", str(port), "--model", "scripted/echo", "--store", "memory:", "--log-format", "text"]
    options += ["--conversation-header", "X-Chat=full", "--conversation-header", "X-Talk", "--conversations-max", "5"]
    options += ["--conversation-ttl", "60", "--on-disconnect", "finish", "--system", "follow", "--strict"]
    options += ["--reasoning", "off", "--request-timeout", "60", "--cors-origin", "https://app.example"]
    process = program.start("serve", *options, "--host", "localhost", "--key-env", "MY_KEY", MY_KEY=key)
    started.append(process)
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or "Forkpoint serves at" not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    assert f"http://localhost:{port}" in lines[-1]
    agents = f"http://localhost:{port}/api/agents"
    assert httpx2.get(agents).status_code == 401
    answered = httpx2.get(agents, headers={"Authorization": f"Bearer {key}", "Origin": "https://app.example"})
    assert answered.status_code == 200
    exposed = answered.headers["access-control-expose-headers"].split(", ")
    assert {"X-Chat", "X-Talk"} <= set(exposed)
    assert "X-Conversation-Id" not in exposed, "those that are named take its place"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert "stopping (SIGINT)" in err
    assert not re.search(r"^\{", err, re.MULTILINE)
    assert key not in "".join(lines) + err
