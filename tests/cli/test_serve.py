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


FLAGS = {
    *(
        "--host",
        "--port",
        "--store",
        "--config",
        "--keys",
        "--key-env",
        "--drain",
        "--lease",
        "--resume-orphans",
        "--log-level",
        "--json",
        "--help",
    ),
    *("--model", "--api", "--base-url", "--api-key-env", "--instructions"),
    *("--anchor-log", "--anchor-command", "--anchor-interval"),
}
MOVED = {
    "--max-body": "max_body",
    "--max-turns": "max_turns",
    "--max-turns-per-tenant": "max_turns_per_tenant",
    "--max-streams": "max_streams",
    "--max-streams-per-tenant": "max_streams_per_tenant",
    "--grace": "grace",
    "--request-timeout": "request_timeout",
    "--cors-origin": "cors_origins",
    "--metrics": "metrics",
    "--log-format": "log_format",
    "--trust": "trust",
    "--allow-trust": "allow_trust",
    "--conversation-header": "conversation_headers",
    "--conversations-max": "conversations_max",
    "--conversation-ttl": "conversation_ttl",
    "--on-disconnect": "on_disconnect",
    "--system": "system",
    "--strict": "strict",
    "--reasoning": "reasoning",
}
MOVED_TO_THE_TOP = {
    "--allow-model": "allow_models",
    "--workspace-root": "workspaces",
    "--allow-isolation": "allow_isolation",
}


def test_help_has_few_flags_and_says_where_the_settings_are_and_how_it_stops(program: Program) -> None:
    said = program.text("serve", "--help")
    assert set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", said, re.MULTILINE)) == FLAGS
    assert "under [server] in the file that --config names; docs/operations.md lists them" in one_line(said)
    assert "Ctrl-C or SIGTERM" in one_line(said)
    store = one_line(said).partition("--store ADDRESS")[2].partition("--config FILE")[0]
    assert "http" not in store, "it cannot keep conversations in another server"


def test_a_flag_that_is_a_setting_now_says_how_it_is_written(program: Program) -> None:
    places = {flag: f"{name} = ... under [server] in a file" for flag, name in MOVED.items()}
    places |= {flag: f"{name} = ... at the top of a file" for flag, name in MOVED_TO_THE_TOP.items()}
    for flag, place in places.items():
        said = refused(program, "--model", "scripted/echo", f"{flag}=1", status=2)
        assert f"Error: {flag} is a setting now: write {place}, and give that with --config FILE" in said
    assert "--agents is called --config now" in refused(program, "--agents", "agents.toml", status=2)
    assert "No such option: --nonsense" in refused(program, "--nonsense", "1", status=2)


@pytest.mark.parametrize(
    "options", [("--port", "70000"), ("--log-level", "loud"), ("--api", "telegraph"), ("--model",), ("--port", "x")]
)
def test_flags_that_make_no_sense_are_refused(program: Program, options: tuple[str, ...]) -> None:
    assert options[0] in refused(program, *options, status=2)


def test_a_file_with_agents_says_who_answers_and_flags_do_not(program: Program) -> None:
    (program.folder / "server.toml").write_text('[agents.a]\nmodel = "scripted/echo"\n')
    for flag in ("--model", "--base-url", "--api-key-env", "--instructions"):
        said = refused(program, "--config", "server.toml", flag, "scripted/echo", status=2)
        assert flag in said
        assert "server.toml has agents already" in said


def test_it_does_not_listen_to_the_world_without_a_key(program: Program) -> None:
    for host in ("0.0.0.0", "::"):
        said = refused(program, "--model", "scripted/echo", "--host", host)
        assert said.startswith(f"error: Whoever can reach {host} could use this server")
    told = program.run("serve", "--model", "scripted/echo", "--host", "0.0.0.0", "--json")
    assert json.loads(told.stderr)["error"]["code"] == "open_to_the_world"


def test_without_keys_it_does_not_let_every_web_page_call(program: Program) -> None:
    (program.folder / "server.toml").write_text('[server]\ncors_origins = ["https://app.example", "*"]\n')
    said = refused(program, "--model", "scripted/echo", "--config", "server.toml")
    assert "server.toml: server.cors_origins: " in said
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


@pytest.mark.parametrize("options", [(), ("--model", "scripted/echo")])
def test_everything_that_is_wrong_with_the_settings_is_said_at_once(program: Program, options: tuple[str, ...]) -> None:
    (program.folder / "server.toml").write_text(
        'allow_models = ["gpt"]\n[server]\nmax_boby = 5\ngrace = -1\nlog_level = "loud"\n'
    )
    said = refused(program, "--config", "server.toml", *options)
    assert said.startswith("error: The server's file cannot be used: server.toml: ")
    for words in (
        "allow_models: 'gpt' is not of the form PROVIDER/NAME",
        "server.max_boby: there is no such field; did you mean max_body?",
        "server.grace: Expected `float` >= 0.0",
        "server.log_level: Invalid enum value 'loud'",
    ):
        assert words in said


def test_everything_that_is_wrong_with_settings_and_agents_is_said_at_once(program: Program) -> None:
    (program.folder / "server.toml").write_text(
        '[server]\nstrikt = true\n[agents.a]\nmodl = "x"\n[agents.b]\nagent = "nowhere:agent"\n'
    )
    said = refused(program, "--config", "server.toml")
    assert "server.strikt: there is no such field; did you mean strict?" in said
    assert "agents.a.modl: there is no such field; did you mean model?" in said
    assert "agents.b.agent: nowhere:agent cannot be imported" in said
    assert "cannot be read" in refused(program, "--config", "missing.toml")
    told = program.run("serve", "--config", "missing.toml", "--json")
    assert json.loads(told.stderr)["error"]["code"] == "bad_config"


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


def test_it_takes_its_settings_from_a_file_and_flags_win_and_it_tells_people_where_it_listens(
    program: Program, started: "list[subprocess.Popen[str]]"
) -> None:
    port, key = free_port(), os.urandom(16).hex()
    (program.folder / "server.toml").write_text(
        """
        allow_models = ["scripted/*"]
        [server]
        port = 1
        host = "127.0.0.1"
        store = "memory:"
        key_env = "MY_KEY"
        log_format = "text"
        conversation_headers = ["X-Chat=full", "X-Talk"]
        strict = true
        max_body = 2048
        cors_origins = ["https://app.example"]
        """
    )
    options = ["--config", "server.toml", "--model", "scripted/echo", "--host", "localhost", "--port", str(port)]
    process = program.start("serve", *options, MY_KEY=key, FORKPOINT_STORE="")
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
    assert "X-Conversation-Id" not in exposed, "the headers that are named take its place"
    body = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
    chat, sent = f"http://localhost:{port}/v1/chat/completions", {"Authorization": f"Bearer {key}"}
    assert httpx2.post(chat, json=body | {"unheard_of": 1}, headers=sent).status_code == 400
    assert httpx2.post(chat, json=body | {"user": "x" * 2048}, headers=sent).status_code == 413
    answer = httpx2.post(chat, json=body, headers=sent | {"X-Talk": "one"})
    assert (answer.status_code, answer.headers["x-talk"]) == (200, "one")
    assert not list(program.folder.glob("*.db")), "the file's store is in memory"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert "draining (SIGINT)" in err
    assert not re.search(r"^\{", err, re.MULTILINE)
    assert key not in "".join(lines) + err
