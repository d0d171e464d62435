"""The suite itself: it runs wherever it is started, no test holds it up, and a module's tests can be found."""

import ast
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "forkpoint"
TESTS = ROOT / "tests"

# What a shell does to a program that a script starts with `&`.
_IGNORING_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def run_tests(*arguments: str, before: str = "") -> str:
    """What pytest prints, in a process that runs this code before it becomes pytest."""
    how = ["-c", before] if before else []
    command = [sys.executable, *how, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, text=True, start_new_session=True) as process:
        try:
            told, _ = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
    return told


def run_file(folder: Path, tests: str, *arguments: str) -> str:
    """What pytest prints of a file with these tests, as if it stood in this suite."""
    file = folder / "test_file.py"
    file.write_text(textwrap.dedent(tests))
    ours = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "tests.conftest"]
    return run_tests("-n1", *ours, *arguments, str(file))


def test_tests_that_press_ctrl_c_pass_in_a_suite_that_was_started_with_ctrl_c_ignored() -> None:
    in_pytest = "tests/llm/local/test_weights.py::test_a_fetch_that_is_interrupted_leaves_nothing_behind"
    in_a_child = "tests/cli/test_turns.py::test_ctrl_c_cancels_the_turn_and_exits_with_130"
    told = run_tests("-n1", in_pytest, in_a_child, before=_IGNORING_CTRL_C)
    assert "2 passed" in told, told


def test_a_test_that_hangs_fails_with_its_stack_and_the_others_run(tmp_path: Path) -> None:
    tests = """
        import threading
        import anyio
        import pytest

        @pytest.fixture
        def endless():
            yield
            threading.Event().wait()

        async def wait_for_nobody():
            await anyio.sleep_forever()

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_that_waits(anyio_backend):
            await wait_for_nobody()

        def test_that_fails_and_does_not_end(endless):
            assert False

        def test_that_passes():
            pass
    """
    told = run_file(tmp_path, tests, "--timeout", "2", "-o", "faulthandler_timeout=3")
    assert re.search("Failed: Timeout.* in wait_for_nobody", told, re.DOTALL), told
    assert re.search("Timeout.* in endless.*crashed while running .*::test_that_fails", told, re.DOTALL), told
    assert "3 failed, 1 passed" in told, told


def test_an_error_that_quotes_bytes_is_reported_and_the_others_run(tmp_path: Path) -> None:
    tests = """
        def test_that_fails():
            raise OSError("\\udcc0 is no file")

        def test_that_passes():
            pass
    """
    told = run_file(tmp_path, tests)
    assert r"OSError: \udcc0 is no file" in told, told
    assert "1 failed, 1 passed" in told, told


def test_a_module_has_tests_of_its_name_or_says_where_they_are() -> None:
    modules = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py")) if not path.stem.startswith("__")]
    modules = [module for module in modules if module.parts[0] != "testing"]
    lost = [fault for module in modules if (fault := lost_tests(module, modules))]
    assert not lost, "\n".join(
        ["move the tests to tests/ROOM/test_MODULE.py, or end the docstring with 'Tests: tests/....py.':", *lost]
    )


def lost_tests(module: Path, modules: list[Path]) -> str | None:
    """Says why nobody finds the tests of a module; None if everybody does."""
    text = ast.get_docstring(ast.parse((SOURCE / module).read_text(encoding="utf-8"))) or ""
    _, says_where, said = text.rpartition("Tests: ")
    if not says_where:
        return None if has_tests_of_its_name(module, modules) else f"{module} has no tests of its name"
    named = re.findall(r"[\w/]+\.py|tests/[\w/]+|forkpoint\.testing[\w.]*\w", said)
    folder, places = TESTS, []
    for name in named:
        if name.startswith("forkpoint."):
            place = SOURCE.parent / name.replace(".", "/")
            places.append(place if place.is_dir() else place.with_suffix(".py"))
        else:
            places.append(ROOT / name if "/" in name else folder / name)
            folder = places[-1].parent
    missing = [str(place.relative_to(ROOT)) for place in places if not place.exists()]
    if not named:
        return f"{module} names no file of tests"
    return f"{module} names {', '.join(missing)}, which is not there" if missing else None


def has_tests_of_its_name(module: Path, modules: list[Path]) -> bool:
    """Whether its own folder of tests has them, or its room, if no other module in that room has this name."""
    name, room = f"test_{module.name}", module.parts[0]
    namesakes = [other for other in modules if other.parts[0] == room and other.name == module.name]
    in_room = len(namesakes) == 1 and any((TESTS / room).rglob(name))
    return in_room or (TESTS / module.parent / name).exists()
