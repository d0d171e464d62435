"""``--base-url``, ``--api`` and ``--api-key-env``: a model of any server, from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

from forkpoint import Conversation
from forkpoint.testing import Fault, Reply, Script
from forkpoint.testing.model_server import ModelServer


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(Script([Reply("Paris.")], repeat=True)) as server:
        yield server


def test_a_plain_name_at_a_base_url_is_asked_by_the_chat_wire_and_without_a_key(
    forkpoint: Program, server: ModelServer
) -> None:
    there = ("--model", "qwen3", "--base-url", server.url)
    done = forkpoint.run("run", "Where?", "-c", "one", *there, OPENAI_API_KEY="sk-not-for-others")
    assert (done.returncode, done.stdout) == (0, "Paris.\n"), done.stderr
    asked = server.last
    assert (asked.path, asked.model) == ("/v1/chat/completions", "qwen3")
    assert asked.header("authorization") is None
    with Conversation.open("one", store=forkpoint.store) as one:
        assert one.agent is not None
        assert (one.agent.llm.model, one.agent.llm.base_url) == ("openai/qwen3", server.url)
    assert forkpoint.text("run", "And now?", "-c", "one") == "Paris.\n", "it is stored: nobody has to say it again"
    assert forkpoint.text("run", "And now?", "-c", "one", *there) == "Paris.\n", "but may"


@pytest.mark.parametrize(
    ("api", "path"), [("chat", "/v1/chat/completions"), ("responses", "/v1/responses"), ("messages", "/v1/messages")]
)
def test_the_wire_and_the_variable_of_the_key_are_named(
    forkpoint: Program, server: ModelServer, api: str, path: str
) -> None:
    base = server.root if api == "messages" else server.url
    options = ("--model", "org/qwen3", "--base-url", base, "--api", api, "--api-key-env", "MY_KEY")
    done = forkpoint.run("chat", *options, stdin="Where?\n", MY_KEY="k-4711")
    assert "Paris." in done.stdout, done.stderr
    assert (server.last.path, server.last.model) == (path, "org/qwen3")
    assert server.last.header("authorization") == "Bearer k-4711"


def test_what_a_conversation_has_otherwise_is_refused_and_allowed(forkpoint: Program, server: ModelServer) -> None:
    forkpoint.text("run", "Where?", "-c", "one", "--model", "qwen3", "--base-url", server.url)
    others = (("--base-url", "http://127.0.0.1:1/v1"), ("--api", "responses"), ("--api-key-env", "OTHER_KEY"))
    for option, value in others:
        done = forkpoint.run("run", "Go on.", "-c", "one", option, value)
        assert done.returncode == 2
        assert option in done.stderr
        assert f"is answered by openai/qwen3 at {server.url} (chat) already" in one_line(done.stderr)
    done = forkpoint.run("run", "Go on.", "-c", "one", "--api", "responses", "--allow", "model")
    assert done.returncode == 0, done.stderr
    assert (server.last.path, server.last.model) == ("/v1/responses", "qwen3")


def test_an_address_without_a_model_is_refused(forkpoint: Program) -> None:
    for verb in (["run", "Hello."], ["serve"]):
        done = forkpoint.run(*verb, "--base-url", "http://127.0.0.1:1/v1")
        assert done.returncode == 2
        assert "say with --model which model is meant" in one_line(done.stderr)
    done = forkpoint.run("run", "Hello.", "--agent", "builds:agent", "--api", "chat")
    assert "--agent says who answers already, so --api cannot be given too" in one_line(done.stderr)


def test_a_fork_may_have_a_model_elsewhere(forkpoint: Program, server: ModelServer) -> None:
    forkpoint.text("run", "Hello.", "-c", "one", "--model", "scripted/echo", "--instructions", "Be brief.")
    forkpoint.text("fork", "one", "--name", "two", "--model", "qwen3", "--base-url", server.url)
    assert forkpoint.text("run", "Go on.", "-c", "two") == "Paris.\n"
    assert server.last.json["messages"][0] == {"role": "system", "content": "Be brief."}


def test_a_server_serves_a_model_of_another_server(forkpoint: Program, server: ModelServer) -> None:
    process = forkpoint.start("serve", "--port", "0", "--json", "--model", "qwen3", "--base-url", server.url)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with Conversation("qwen3", store=url) as there:
            assert there.run("Where?").text == "Paris."
        assert server.last.path == "/v1/chat/completions"
    finally:
        process.kill()
        process.communicate()


def names(forkpoint: Program, text: str) -> None:
    forkpoint.settings.parent.mkdir(parents=True, exist_ok=True)
    forkpoint.settings.write_text(text)


def test_a_name_of_the_settings_is_enough_and_is_not_needed_again(forkpoint: Program, server: ModelServer) -> None:
    table = f'model = "qwen3"\nbase_url = "{server.url}"\napi_key_env = "MY_KEY"\ntemperature = 0.5'
    names(forkpoint, f"[models.fast]\n{table}\n")
    key = {"MY_KEY": "k-4711"}
    done = forkpoint.run("run", "Where?", "-c", "one", "--model", "fast", **key)
    assert (done.returncode, done.stdout) == (0, "Paris.\n"), done.stderr
    assert (server.last.model, server.last.json["temperature"]) == ("qwen3", 0.5)
    assert server.last.header("authorization") == "Bearer k-4711"
    assert forkpoint.text("run", "Where?", "-c", "one", "--model", "fast", **key) == "Paris.\n", (
        "what is so may be said"
    )
    assert forkpoint.text("run", "Where?", FORKPOINT_MODEL="fast", **key) == "Paris.\n"
    names(forkpoint, f'[models.fast]\nmodel = "other"\nbase_url = "{server.url}"\n')
    done = forkpoint.run("run", "Where?", "-c", "one", "--model", "fast", **key)
    assert (done.returncode, "--model" in done.stderr) == (2, True)
    forkpoint.settings.unlink()
    assert forkpoint.text("run", "And now?", "-c", "one", **key) == "Paris.\n"
    done = forkpoint.run("run", "Where?", "--model", "fast")
    assert (done.returncode, "There is no model 'fast'" in done.stderr) == (1, True)


def test_a_trusted_project_names_models_and_shows_them_before_it_is_trusted(
    forkpoint: Program, server: ModelServer
) -> None:
    (forkpoint.folder / "here" / ".forkpoint").mkdir(parents=True)
    (forkpoint.folder / "here" / ".git").mkdir()
    table = f'model = "house"\n[models.house]\nmodel = "qwen3"\nbase_url = "{server.url}"\n'
    (forkpoint.folder / "here" / ".forkpoint" / "config.toml").write_text(table)
    done = forkpoint.run("run", "Where?", "--workspace", "here", "--model", "house")
    assert (done.returncode, server.requests) == (1, []), "it is not trusted"
    shown = forkpoint.run("trust", "here").stdout + forkpoint.run("trust", "here").stderr
    assert "It names a model house:" in shown
    assert server.url in shown
    for model in ((), ("--model", "house")):
        assert forkpoint.text("run", "Where?", "--workspace", "here", "--trust", *model) == "Paris.\n"


GONE = "http://127.0.0.1:1/v1"


def test_a_wrong_model_is_not_baked_in(forkpoint: Program, server: ModelServer) -> None:
    for name in ("one", "two"):
        done = forkpoint.run("run", "Where?", "-c", name, "--model", "qwen3", "--base-url", GONE)
        assert done.returncode == 1
        assert f"forkpoint retry {name} --model NAME" in one_line(done.stderr)
    done = forkpoint.run("retry", "one", "--base-url", server.url)
    assert (done.returncode, done.stdout, server.last.model) == (0, "Paris.\n", "qwen3"), done.stderr
    assert forkpoint.text("run", "And there?", "-c", "one") == "Paris.\n"
    other = ("--model", "other", "--base-url", server.url)
    assert forkpoint.text("run", "Where?", "-c", "two", *other) == "Paris.\n", "no model has ever answered there"
    assert server.last.model == "other"
    done = forkpoint.run("run", "Where?", "-c", "two", "--model", "qwen3", "--base-url", server.url)
    assert (done.returncode, "is answered by openai/other" in one_line(done.stderr)) == (2, True)


def test_another_model_of_a_conversation_that_was_answered_is_said_with_retry_or_allowed(
    forkpoint: Program, server: ModelServer
) -> None:
    forkpoint.script(Reply("One."))
    forkpoint.text("run", "Where?", "-c", "one", "--agent", "builds:agent")
    forkpoint.script(Reply(fault=Fault("refused")))
    assert "--model NAME" not in forkpoint.run("run", "Where?", "-c", "one").stderr, "another model would be no help"
    done = forkpoint.run("retry", "one", "--model", "qwen3", "--base-url", server.url)
    assert (done.returncode, done.stdout) == (0, "Paris.\n"), done.stderr
    assert {tool["function"]["name"] for tool in server.last.json["tools"]} == {"press_ctrl_c", "read_log", "restart"}
