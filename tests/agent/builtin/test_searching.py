"""Files are listed and searched within limits, whatever they are called and whatever is looked for."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.agent.builtin.calls import Calls

from forkpoint.agent.builtin import list_files, search_files
from forkpoint.agent.builtin.globs import matcher

pytestmark = pytest.mark.anyio
PATIENCE = 15


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("*.py", "a.py src/a.py", "a.pyc a.py/b"),
        ("src/*.py", "src/a.py", "src/b/a.py a.py x/src/a.py"),
        ("src/**/*.py", "src/a.py src/b/c/a.py", "a.py"),
        ("**/test_*", "test_a x/test_a", "test_a/x"),
        ("src/", "src/a src/b/c", "x/src/a"),
        ("./src/**", "src/a src/b/c", "a"),
        ("*.{c,h}", "a.c x/a.h", "a.ch a.{c,h}"),
        ("{src,test}/*.{py,txt}", "src/a.py test/b.txt", "src/a.c"),
        ("[ab]?", "ax x/bx", "cx a abc"),
        ("a{b", "a{b", "ab"),
    ],
)
def test_patterns_of_paths(pattern: str, fitting: str, other: str) -> None:
    fits = matcher(pattern)
    assert [path for path in fitting.split() if not fits(path)] == []
    assert [path for path in other.split() if fits(path)] == []


async def test_no_pattern_takes_long(calls: Calls, tmp_path: Path) -> None:
    deep = "/".join(["a" * 100] * 15)
    (tmp_path / deep).mkdir(parents=True)
    (tmp_path / deep / ("a" * 200)).touch()
    for pattern in ("*a" * 60 + "b", "**/" * 100 + "b", "/".join(["**", "*a*a*a*a"] * 20) + "/b"):
        assert "There are no such files" in await calls(list_files, pattern=pattern)
    for pattern in ("{a,b}" * 30, "x" * 2000):
        assert "is too large" in await calls(list_files, pattern=pattern)


# Listing.


async def test_files_are_listed_in_order(calls: Calls, tmp_path: Path) -> None:
    put(tmp_path, b_txt="", a__z_txt="", a__b__c_py="", _hidden="")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").touch()
    assert await calls(list_files) == ".hidden\na/b/c.py\na/z.txt\nb.txt\nlink (link)"
    assert await calls(list_files, path="a") == "a/b/c.py\na/z.txt"
    assert await calls(list_files, path="link", pattern="*.py") == "a/b/c.py"
    assert await calls(list_files, pattern="*.rs") == "[There are no such files.]"
    assert "[3 more files are not shown: name a folder or a pattern.]" in await calls(list_files, limit=2)
    assert "is a file, not a folder" in await calls(list_files, path="b.txt")
    assert "There is no folder x" in await calls(list_files, path="x")


async def test_a_folder_that_git_ignores_is_meant_as_it_is(calls: Calls, tmp_path: Path) -> None:
    put(tmp_path, _gitignore="build/\n", a_py="needle", build__x="needle", build__deep__y="")
    git(tmp_path, "init", "-q")
    assert await calls(list_files) == ".gitignore\na.py"
    assert await calls(list_files, path="build") == "build/deep/y\nbuild/x"
    assert "build/x:1:" in await calls(search_files, pattern="needle", path="build")
    assert "build" not in await calls(search_files, pattern="needle")
    (tmp_path / ".gitignore").write_text("*\n")
    assert "a.py" in await calls(list_files), "as in a scratch folder of a repository that ignores it"


async def test_in_a_repository_what_git_ignores_is_left_out(calls: Calls, tmp_path: Path) -> None:
    put(tmp_path, _gitignore="*.log\nbuild/\n", a_py="", b_log="", build__x="", src__c_py="", src__d_log="", gone="")
    git(tmp_path, "init", "-q", ".")
    git(tmp_path, "add", "a.py", "gone")
    (tmp_path / "gone").unlink()
    assert await calls(list_files) == ".gitignore\na.py\nsrc/c.py"
    assert await calls(list_files, path="src") == "src/c.py"
    assert "b.log" in await calls(list_files, ignored=True)
    put(tmp_path, src__c_py="needle", b_log="needle")
    assert await calls(search_files, pattern="needle") == "src/c.py:1: needle\n[Lines that match: 1, in files: 1.]"


async def test_a_repository_in_a_repository_is_looked_into(calls: Calls, tmp_path: Path) -> None:
    put(tmp_path, a_py="", inner__b_py="")
    git(tmp_path, "init", "-q", ".")
    git(tmp_path / "inner", "init", "-q", ".")
    assert await calls(list_files) == "a.py\ninner/b.py"


async def test_nothing_that_a_repository_says_is_run(calls: Calls, tmp_path: Path) -> None:
    """Reading asks nobody, so it must not run a program that came with the files."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(tmp_path, "init", "-q", ".")
    git(tmp_path, "add", "program")
    for name in (
        "core.fsmonitor",
        "core.pager",
        "core.sshCommand",
        "alias.ls-files",
        "filter.x.clean",
        "diff.external",
    ):
        git(tmp_path, "config", name, str(program))
    (tmp_path / ".gitattributes").write_text("* filter=x\n")
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (tmp_path / ".git" / "hooks" / hook).symlink_to(program)
    assert await calls(list_files) == ".gitattributes\nprogram"
    assert "program:2:" in await calls(search_files, pattern="touch")
    assert not (tmp_path / "ran").exists()


async def test_a_repository_that_claims_files_elsewhere_shows_none_of_them(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    put(outside, secret_txt="secret")
    put(workspace, a_txt="")
    git(workspace, "init", "-q", ".")
    git(workspace, "config", "core.worktree", str(outside))
    calls = Calls(workspace)
    assert "secret" not in await calls(list_files)
    assert "secret" not in await calls(search_files, pattern="sec")


async def test_what_is_behind_a_link_is_not_listed_or_searched(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    put(outside, secret_txt="needle")
    put(workspace, a_txt="needle")
    (workspace / "folder").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "secret.txt")
    (workspace / "round").symlink_to(".")
    calls = Calls(workspace)
    assert await calls(list_files) == "a.txt\nfile (link)\nfolder (link)\nround (link)"
    assert await calls(search_files, pattern="needle") == "a.txt:1: needle\n[Lines that match: 1, in files: 1.]"


async def test_odd_names_are_one_line_each(calls: Calls, tmp_path: Path) -> None:
    for name in (b"new\nline", b"inv\xffalid", b"tab\there", "ünï".encode(), b"-rf", b" "):
        (tmp_path / os.fsdecode(name)).write_text("needle")
    expected = ' \n-rf\n"inv\\xffalid"\n"new\\nline"\n"tab\\there"\nünï'
    assert await calls(list_files) == expected
    assert (await calls(search_files, pattern="needle")).count(":1: needle") == 6
    git(tmp_path, "init", "-q", ".")
    assert await calls(list_files) == expected, "git tells the same names"


async def test_a_listing_has_limits(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "/".join("d" * 110)
    os.makedirs(deep)
    (deep / "x").touch()
    assert "some folders are more than 100 deep" in await calls(list_files)
    for number in range(400):
        (tmp_path / f"{number:04}{'y' * 200}").touch()
    told = await calls(list_files, limit=5000)
    assert len(told) < 61_000
    assert "more files are not shown" in told
    monkeypatch.setattr("forkpoint.agent.builtin.listing.ENTRIES", 300)
    assert "there are more than 300 names" in await calls(list_files)


# Searching.


async def test_lines_that_match_are_found_with_their_numbers(calls: Calls, tmp_path: Path) -> None:
    put(tmp_path, a_py="import os\n\ndef f():\n    return os\n", src__b_py="def g():\n    pass\n", c_txt="DEF\r\n")
    told = await calls(search_files, pattern=r"^def (\w)")
    assert told == "a.py:3: def f():\nsrc/b.py:1: def g():\n[Lines that match: 2, in files: 2.]"
    assert (await calls(search_files, pattern="DEF$", glob="*.txt")).startswith("c.txt:1: DEF\n")
    assert (await calls(search_files, pattern="def", ignore_case=True)).count(":1:") == 2
    assert (await calls(search_files, pattern="g", path="src")).startswith("src/b.py:1: ")
    assert (await calls(search_files, pattern="g", path="src/b.py")).startswith("src/b.py:1: ")
    assert await calls(search_files, pattern="zzz") == "[No line matches. Files searched: 3.]"


async def test_lines_around_a_match_are_shown_once(calls: Calls, tmp_path: Path) -> None:
    put(tmp_path, a="1\n2 x\n3\n4\n5 x\n6\n7\n8\n9\n10 x")
    told = await calls(search_files, pattern="x", context=1)
    assert told.splitlines() == [
        *("a-1- 1", "a:2: 2 x", "a-3- 3", "a-4- 4", "a:5: 5 x", "a-6- 6", "--", "a-9- 9", "a:10: 10 x"),
        "[Lines that match: 3, in files: 1.]",
    ]


async def test_a_search_has_limits(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, a="x\n" * 500, b="y" * 50_000 + "NEEDLE" + "y" * 50_000)
    told = await calls(search_files, pattern="x", limit=3)
    assert told.splitlines()[3:] == ["[Lines that match: 3, in files: 1.]", "[There are more than 3: narrow it down.]"]
    told = await calls(search_files, pattern="NEEDLE")
    assert len(told) < 500
    assert "y[...]" in told.replace("NEEDLE", "")
    assert "NEEDLE" in told
    (tmp_path / "c").write_text(("x" * 290 + "\n") * 1000)
    told = await calls(search_files, pattern="xx", limit=1000)
    assert len(told) < 61_000
    assert "Not all of these lines are shown" in told
    monkeypatch.setattr("forkpoint.agent.builtin.searching.FILE_LIMIT", 100)
    assert "Files not searched because they are larger than" in await calls(search_files, pattern="x")


async def test_binary_files_and_what_cannot_be_read_are_left_out(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"needle\0")
    (tmp_path / "latin").write_bytes(b"needle \xff\n")
    (tmp_path / "mark").write_bytes(b"\xef\xbb\xbfneedle\n")
    told = await calls(search_files, pattern="^needle")
    assert told.splitlines()[:2] == ["latin:1: needle \N{REPLACEMENT CHARACTER}", "mark:1: needle"]
    assert "Files not searched because they are binary: 1" in told


async def test_an_expression_that_takes_forever_is_ended_with_what_was_found(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkpoint.agent.builtin.searching.SECONDS", 1)
    put(tmp_path, a="aab\n", b="a" * 100 + "c\n")
    began = time.monotonic()
    told = await calls(search_files, pattern="(a+a+)+b")
    assert time.monotonic() - began < PATIENCE
    assert told.startswith("a:1: aab\n[Stopped after 1 s, so these are not all.")


@pytest.mark.parametrize("pattern", ["(", "*", "[", "(?P<a>x)(?P<a>y)", "a{99999999999}", "(" * 5000 + ")" * 5000])
async def test_an_expression_that_is_wrong_is_a_clear_failure(pattern: str, calls: Calls, tmp_path: Path) -> None:
    put(tmp_path, a="x")
    told = await calls(search_files, pattern=pattern)
    assert told.startswith("FAILED ToolFailed: The regular expression is wrong")
