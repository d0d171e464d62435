"""What shells complete. ``./run python -m tests.cli.test_completion --write`` writes the index of commands anew."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.cli.program import Program, agent

from forkpoint import Conversation
from forkpoint.cli.app import app
from forkpoint.cli.completion import answer, index
from forkpoint.cli.completion.candidates import candidates
from forkpoint.cli.completion.words import set_apart, split

SCRIPTS = Path(index.__file__).with_name("scripts")


def indexed() -> str:
    return index.written(index.described(typer.main.get_command(app))) + "\n"


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def offered(line: str) -> list[str]:
    """The words that are offered at the end of a line."""
    *before, word = split(line)
    found = candidates(before, word)
    assert found.kind == "words"
    return [value for value, _ in found.words]


def completed(forkpoint: Program, *words: str, **environment: str) -> dict[str, str]:
    """What zsh and fish hear: words, and what each of them is."""
    done = forkpoint.run(*words, _FORKPOINT_COMPLETE="words", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    kind, *lines = done.stdout.splitlines()
    assert kind == "words"
    return dict(line.split("\t") for line in lines)


def test_the_index_has_what_the_commands_take() -> None:
    said = "commands have changed: ./run python -m tests.cli.test_completion --write"
    assert index.FILE.read_text(encoding="utf-8") == indexed(), said


# What is offered.


def test_commands_are_offered_by_their_beginning() -> None:
    assert sorted(offered("re")) == ["release", "rename", "request", "restore", "resume", "retry", "rewind"]
    assert offered("keys r") == ["role", "revoke"]
    assert offered("list x") == []
    assert "run" in offered("")


def test_options_are_offered_once_unless_they_can_be_repeated() -> None:
    assert offered("list --st") == ["--status", "--store"]
    assert offered("list --status idle --st") == ["--store"]
    assert offered("list --status=idle --st") == ["--store"]
    assert offered("list --tag a=b --ta") == ["--tag"]
    assert offered("run -q --qu") == []
    assert offered("keys add ann --ro") == ["--role"]


def test_values_of_an_option_are_offered_in_both_forms() -> None:
    assert offered("list --status ") == ["idle", "running", "awaiting_approval", "interrupted"]
    assert offered("list --status a") == ["awaiting_approval"]
    assert offered("list --status=i") == ["--status=idle", "--status=interrupted"]
    assert offered("keys role ci ") == ["read", "use", "operate"]
    assert offered("run --agent c") == ["coder"]
    assert offered("list --cursor ") == []
    assert offered("completion ") == ["bash", "zsh", "fish"]


def test_an_option_that_takes_a_value_takes_the_next_word_whatever_it_is() -> None:
    assert offered("keys role --file list ci ") == ["read", "use", "operate"]
    assert offered("list --cursor --status --st") == ["--status", "--store"]


def test_after_two_dashes_no_option_is_offered() -> None:
    assert offered("keys role -- ci --f") == []
    assert offered("keys role -- ci o") == ["operate"]


@pytest.mark.parametrize("line", ["backup ", "list --store ", "list --store=", "serve --config x", "verify --since "])
def test_files_are_left_to_the_shell(line: str) -> None:
    *before, word = split(line)
    assert candidates(before, word) == ("files", ())


@pytest.mark.parametrize("line", ["trust ", "run --workspace ", "chat --workspace=x"])
def test_folders_are_left_to_the_shell(line: str) -> None:
    *before, word = split(line)
    assert candidates(before, word) == ("folders", ())


def test_models_are_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FORKPOINT_MODEL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert offered("run --model ") == ["local/smollm2", "openai/", "anthropic/"]
    assert "anthropic/claude-sonnet-5" in offered("run --model anthropic/claude-s")
    assert "--model=openai/gpt-5" in offered("chat --model=openai/gpt-")
    monkeypatch.setenv("FORKPOINT_MODEL", "scripted/mine.json")
    assert offered("fork it --model scr") == ["scripted/mine.json"]


def test_models_and_templates_of_the_settings_are_offered(forkpoint: Program) -> None:
    forkpoint.settings.parent.mkdir(parents=True)
    house = '[models.house]\nmodel = "qwen3"\nbase_url = "http://localhost:1/v1"\n'
    forkpoint.settings.write_text(house + '[templates.review]\nmessage = "Review this."\n')
    assert completed(forkpoint, "chat", "--model", "h") == {"house": "a model of your settings"}
    assert completed(forkpoint, "run", "-t", "") == {"review": "Review this."}
    assert completed(forkpoint, "templates", "re") == {"review": "Review this."}
    forkpoint.settings.write_text("[models")
    assert list(completed(forkpoint, "chat", "--model", "")) == ["local/smollm2", "openai/", "anthropic/"]
    assert completed(forkpoint, "run", "-t", "") == {}


def test_a_command_that_is_not_there_has_nothing_to_offer() -> None:
    assert offered("nothing --st") == []
    assert offered("list --nothing --sto") == ["--store"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("forkpoint show b", ["forkpoint", "show", "b"]),
        ("forkpoint show ", ["forkpoint", "show", ""]),
        ("forkpoint  run 'it is' \"a \\\"b", ["forkpoint", "run", "it is", 'a "b']),
        ("forkpoint run it\\ is '' ", ["forkpoint", "run", "it is", "", ""]),
    ],
)
def test_a_line_is_taken_apart_as_a_shell_does(line: str, words: list[str]) -> None:
    assert split(line) == words


def test_bash_keeps_what_stands_before_a_colon_or_an_equals_sign() -> None:
    breaks = " \t\n\"'><=;|&(:"
    assert set_apart("ci:build", breaks) == 3
    assert set_apart("--store=a:b", breaks) == 10
    assert set_apart("--order=us", breaks.replace(":", "")) == 8
    assert set_apart("ci:build", "") == 0


# Names of conversations.


def test_names_of_conversations_are_offered_with_their_titles(forkpoint: Program) -> None:
    for name, title in (("build-1", "The disk\twas full"), ("build-2", None), ("other", "Something else")):
        with Conversation(agent("shell"), conversation_id=name, store=forkpoint.store, title=title) as made:
            made.run("hi")
    titles = completed(forkpoint, "show", "bu")
    assert list(titles) == ["build-2", "build-1"]
    assert titles["build-1"] == "The disk was full"
    assert list(completed(forkpoint, "diff", "build-1", "o")) == ["other"]
    assert list(completed(forkpoint, "run", "-c", "o")) == ["other"]
    assert list(completed(forkpoint, "agents", "o")) == ["other"]
    elsewhere = f"sqlite:///{forkpoint.folder / 'other.db'}"
    assert completed(forkpoint, "show", "--store", elsewhere, "bu") == {}
    assert list(completed(forkpoint, "show", f"--store={forkpoint.store}", "oth", FORKPOINT_STORE=elsewhere)) == [
        "other"
    ]


def test_completing_makes_no_file_and_says_nothing_of_a_store_that_is_broken(forkpoint: Program) -> None:
    assert completed(forkpoint, "tree", "bu") == {}
    assert os.listdir(forkpoint.folder) == []
    (forkpoint.folder / "store.db").write_text("not a store, but long enough to be taken for one" * 10)
    assert completed(forkpoint, "tree", "bu") == {}


def test_nobody_waits_long_for_a_server_that_does_not_answer(forkpoint: Program) -> None:
    script = (
        "import sys\n"
        "from forkpoint.cli.completion import answer, names\n"
        "names.PATIENCE = 0.2\n"
        "answer.answer(['show', 'b'])\n"
        "print('the program went on')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes a connection, and says nothing
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment = forkpoint.environment | {answer.VARIABLE: "words", "FORKPOINT_STORE": server}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
    assert (done.stdout, done.stderr) == ("words\n", "")


# Shells.


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(forkpoint: Program, shell: str) -> None:
    script = forkpoint.text("completion", shell)
    assert script == (SCRIPTS / f"forkpoint.{shell}").read_text()
    assert answer.VARIABLE in script
    if found := shutil.which(shell):  # the protocol is tested without it
        subprocess.run([found, "-n", "/dev/stdin"], input=script, text=True, check=True)


def test_another_shell_is_refused(forkpoint: Program) -> None:
    done = forkpoint.run("completion", "tcsh")
    assert done.returncode == 2
    assert "tcsh" in done.stderr


def in_bash(forkpoint: Program, *lines: str) -> list[list[str]]:
    """What bash offers at the end of each line, with the script, and with the words as bash takes them apart."""
    tries = "".join(f"complete_line {line!r}\n" for line in lines)
    script = f"""
        source {SCRIPTS}/forkpoint.bash
        forkpoint() {{ {sys.executable} -m forkpoint "$@"; }}
        compopt() {{ echo "compopt $*"; }}
        complete_line() {{
            COMP_LINE=$1 COMP_POINT=${{#1}}
            read -r -a COMP_WORDS <<< "$(sed 's/[:=]/ & /g' <<< "$1")"
            [[ $1 == *" " ]] && COMP_WORDS+=("")
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _forkpoint forkpoint
            (IFS='|'; echo "${{COMPREPLY[*]}}")
        }}
        {tries}
    """
    command = ["bash", "--norc", "-c", script]
    done = subprocess.run(
        command, cwd=forkpoint.folder, env=forkpoint.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("|") if line else [] for line in done.stdout.splitlines()]


def test_bash_completes_with_the_script(forkpoint: Program) -> None:
    with Conversation(agent("shell"), conversation_id="ci:build-1", store=forkpoint.store, title="a:b") as made:
        made.run("hi")
    lines = ("forkpoint list --st", "forkpoint list --order=us", "forkpoint keys role ci ", "forkpoint show ci:b")
    assert in_bash(forkpoint, *lines) == [["--status", "--store"], ["used"], ["read", "use", "operate"], ["build-1"]]


def test_bash_completes_files_by_itself(forkpoint: Program) -> None:
    assert in_bash(forkpoint, "forkpoint list --store fo", "forkpoint trust ", "forkpoint run --model ope") == [
        ["compopt -o default"],
        [],
        ["compopt -o dirnames"],
        [],
        ["compopt -o nospace"],
        ["openai/"],
    ]


if __name__ == "__main__" and "--write" in sys.argv:
    index.FILE.write_text(indexed(), encoding="utf-8")
