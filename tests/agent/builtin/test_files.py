"""Files are read within limits, and written whole or not at all."""

import base64
import os
import stat
import sys
import threading
from pathlib import Path

import anyio
import pytest
from tests.agent.builtin.calls import Calls

from forkpoint.agent.builtin import edit_file, read_file, write_file
from forkpoint.agent.builtin.failure import ToolFailed
from forkpoint.agent.builtin.files import FILE_LIMIT, PICTURE_LIMIT
from forkpoint.agent.builtin.lines import LINE, SHOWN
from forkpoint.agent.builtin.new_file import put, writable
from forkpoint.agent.builtin.paths import Workspace
from forkpoint.agent.context import ToolContext
from forkpoint.events import Image

pytestmark = pytest.mark.anyio
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


# Reading.


async def test_a_file_is_read_with_line_numbers(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\nthree")
    assert await calls(read_file, path="a") == "     1\tone\n     2\t\n     3\tthree"
    (tmp_path / "empty").touch()
    assert await calls(read_file, path="empty") == "[the file is empty]"


async def test_a_part_of_a_file_says_where_to_go_on(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("".join(f"{n}\n" for n in range(1, 101)))
    told = await calls(read_file, path="a", offset=10, limit=2)
    assert told == "    10\t10\n    11\t11\n[lines 10 to 11 of 100; go on with offset=12]"
    assert (await calls(read_file, path="a", offset=99)).endswith("\t100\n[lines 99 to 100 of 100]")
    assert "has 100 lines, so there is no line 101" in await calls(read_file, path="a", offset=101)
    (tmp_path / "b").write_text("1\n2\n3")
    assert (await calls(read_file, path="b", limit=2)).endswith("[lines 1 to 2 of 3; go on with offset=3]")


async def test_what_is_shown_is_limited_by_lines_and_in_all(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "wide").write_text("x" * 5_000_000 + "\nend\n")
    told = await calls(read_file, path="wide")
    assert told == f"     1\t{'x' * LINE} [... {5_000_001 - LINE:,} more bytes]\n     2\tend"
    (tmp_path / "long").write_text("y" * 100 + "\n" + ("z" * 99 + "\n") * 5000)
    told = await calls(read_file, path="long", limit=10_000)
    assert SHOWN * 0.9 < len(told) < SHOWN + 200
    assert " of 5,001; go on with offset=" in told


async def test_characters_that_a_cut_would_split_stay_whole(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("\N{GRINNING FACE}" * 50_000)
    told = await calls(read_file, path="a")
    assert told.count("\N{GRINNING FACE}") == LINE
    assert "\N{REPLACEMENT CHARACTER}" not in told
    assert "UTF-8" not in told


async def test_a_huge_file_is_read_in_part(calls: Calls, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.write(b"first\nsecond\n" + b"x" * 10_000)
        file.truncate(50 * 1024**3)  # of holes
    told = await calls(read_file, path="huge", limit=1)
    assert told == "     1\tfirst\n[lines 1 to 1; go on with offset=2]"


async def test_a_file_that_grows_meanwhile_comes_to_an_end(calls: Calls, tmp_path: Path) -> None:
    done = threading.Event()
    (tmp_path / "log").write_text("x\n")

    def grow() -> None:
        with (tmp_path / "log").open("ab", buffering=0) as file:
            while not done.is_set() and file.tell() < 30_000_000:
                file.write(b"x\n" * 100_000)

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        told = await calls(read_file, path="log", offset=10**9)
    finally:
        done.set()
        growing.join()
    assert "there is no line 1,000,000,000" in told


async def test_line_ends_marks_and_other_encodings_are_said(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "dos").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert await calls(read_file, path="dos") == "     1\tone\n     2\ttwo\n[lines end with CRLF; edit_file keeps that]"
    (tmp_path / "latin").write_bytes("grün\n".encode("latin-1"))
    told = await calls(read_file, path="latin")
    assert told.startswith("     1\tgr\N{REPLACEMENT CHARACTER}n\n[not UTF-8")


async def test_a_binary_file_is_not_shown(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"\x7fELF\0\0")
    assert "is a binary file (6 bytes)" in await calls(read_file, path="program")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
async def test_a_picture_is_shown_as_one(start: bytes, kind: str, calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(start + b"rest")
    told = await calls(read_file, path="picture")
    assert told == f"picture ({kind}, {len(start) + 4} bytes):"
    assert calls.last.parts[1] == Image(kind, base64.b64encode(start + b"rest").decode())
    with (tmp_path / "picture").open("ab") as file:
        file.truncate(PICTURE_LIMIT + 1)
    assert "Make it smaller" in await calls(read_file, path="picture")


async def test_a_folder_says_what_is_in_it(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "a.txt").touch()
    (tmp_path / "link").symlink_to("src")
    assert await calls(read_file, path=".") == ". is a folder:\na.txt\nlink (link)\nsrc/"
    for number in range(600):
        (tmp_path / "src" / str(number)).touch()
    told = await calls(read_file, path="link")
    assert told.count("\n") == 501
    assert "more than 500 entries" in told


async def test_a_name_that_is_nearly_right_is_helped(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "server.py").touch()
    assert "There is: server.py" in await calls(read_file, path="sever.py")


# Writing.


async def test_a_file_is_written_with_its_folders(calls: Calls, tmp_path: Path) -> None:
    assert await calls(write_file, path="a/b/c.txt", content="ä\nb") == "Made a/b/c.txt: 2 lines, 4 bytes."
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == "ä\nb".encode()
    assert (await calls(write_file, path="a/b/c.txt", content="")).startswith("Replaced")
    assert os.listdir(tmp_path / "a" / "b") == ["c.txt"], "nothing else is left there"


async def test_a_new_file_has_the_mode_that_others_have(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    await calls(write_file, path="new", content="x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o640])
async def test_a_file_keeps_its_mode(mode: int, calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "a").chmod(mode)
    await calls(edit_file, path="a", old="one", new="two")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    await calls(write_file, path="a", content="three")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


async def test_a_read_only_file_stays_as_it_is(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "a").chmod(0o444)
    assert "is read-only" in await calls(write_file, path="a", content="two")
    assert "is read-only" in await calls(edit_file, path="a", old="one", new="two")
    assert (tmp_path / "a").read_text() == "one"


async def test_another_name_of_a_file_keeps_what_it_had(calls: Calls, tmp_path: Path) -> None:
    """A hard link may be one of a file outside."""
    (tmp_path / "a").write_text("one")
    os.link(tmp_path / "a", tmp_path / "b")
    await calls(edit_file, path="a", old="one", new="two")
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("two", "one")


def test_what_somebody_else_has_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    for theirs in ("changed", "two", None):
        (tmp_path / "a").write_text("one")
        os.utime(tmp_path / "a", (1, 1))
        with Workspace(tmp_path) as workspace, workspace.place("a", write=True) as place:
            before = writable(place)
            (tmp_path / "a").unlink()
            if theirs is not None:
                (tmp_path / "a").write_text(theirs)
            with pytest.raises(ToolFailed, match="changed meanwhile"):
                put(place, b"ours", before)
        assert [file.read_text() for file in tmp_path.iterdir()] == ([theirs] if theirs is not None else [])


def test_two_edits_of_one_file_at_once_both_land(tmp_path: Path) -> None:
    for _ in range(30):
        (tmp_path / "a").write_text("one\ntwo\nthree\n")
        together = threading.Barrier(2)
        told: list[object] = []

        def edit(old: str, together: threading.Barrier = together, told: list[object] = told) -> None:
            together.wait()
            told.append(edit_file(ToolContext(old, workspace=tmp_path), "a", old, old.upper()))

        threads = [threading.Thread(target=edit, args=(old,)) for old in ("one", "three")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 2
        assert (tmp_path / "a").read_text() == "ONE\ntwo\nTHREE\n"


async def test_an_edit_that_would_become_too_large_is_not_even_made(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("\n" * 100_000)
    told = await calls(edit_file, path="a", old="\n", new="x" * 1_000_000, replace_all=True)  # 100 GB
    assert "would have more than 10,485,760 bytes. Nothing was changed." in told
    told = await calls(edit_file, path="a", old="\n", new="é" * 60, replace_all=True)
    assert "would have more than 10,485,760 bytes. Nothing was changed." in told
    assert (tmp_path / "a").stat().st_size == 100_000


async def test_what_cannot_be_written_is_a_clear_failure(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "is a folder, not a file" in await calls(write_file, path="folder", content="x")
    assert "is a folder, not a file" in await calls(write_file, path="folder/", content="x")
    assert "is a folder, not a file" in await calls(write_file, path=".", content="x")
    assert "the limit is" in await calls(write_file, path="big", content="x" * (FILE_LIMIT + 1))
    assert os.listdir(tmp_path) == ["folder"]


# Editing.


async def test_a_text_is_replaced_where_it_is(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree\nfour\nfive\nsix")
    told = await calls(edit_file, path="a", old="three\nfour", new="3\n4\n4.5")
    assert (tmp_path / "a").read_text() == "one\ntwo\n3\n4\n4.5\nfive\nsix"
    assert told.startswith("Edited a at line 3:\n     1\tone\n     2\ttwo\n     3\t3\n")
    await calls(edit_file, path="a", old="six", new="")
    assert (tmp_path / "a").read_text() == "one\ntwo\n3\n4\n4.5\nfive\n"


async def test_a_text_that_is_there_more_than_once_is_not_replaced_by_chance(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x = 1\ny = 2\nx = 1\n" + "x = 1\n" * 30)
    told = await calls(edit_file, path="a", old="x = 1", new="x = 2")
    assert "in a 32 times, at lines 1, 3, 4, 5," in told
    assert "x = 2" not in (tmp_path / "a").read_text()
    told = await calls(edit_file, path="a", old="x = 1", new="x = 2", replace_all=True)
    assert told.startswith("Edited a 32 times, first at line 1:")
    assert (tmp_path / "a").read_text().count("x = 2") == 32


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (
            "def g(x):\n  return x + 1",
            "Only white space or line ends differ. The nearest place is at line 5:\n     5\tdef g",
        ),
        ("def g(x):\n    return x + 2", "The nearest place is at line 5:\n     5\tdef g(x):\n     6\t    return x + 1"),
        ("    retrun x * 1000", "The nearest place is at line 2:\n     2\t    return x * 1000"),
        ("nothing of that kind at all", "Nor is anything like it"),
        ("\n\n\n\n\n\n", "Nor is anything like it"),
        ("last\n", "It is at the end of the file, which does not end with a newline."),
    ],
)
async def test_a_text_that_is_not_there_shows_the_nearest_place(
    old: str, said: str, calls: Calls, tmp_path: Path
) -> None:
    text = "def f(x):\n    return x * 1000\n\n\ndef g(x):\n    return x + 1\n\nlast"
    (tmp_path / "a").write_text(text)
    told = await calls(edit_file, path="a", old=old, new="new")
    assert "The text is not in a; nothing was changed." in told
    assert said in told
    assert (tmp_path / "a").read_text() == text


async def test_the_nearest_place_in_a_large_file_is_found_soon_or_not_at_all(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(("a" * 150 + "\n") * 60_000)
    told = await calls(edit_file, path="a", old="a" * 140 + "b" * 20, new="new")
    assert "The text is not in a" in told
    assert calls.last.duration is not None
    assert calls.last.duration < 5


async def test_line_ends_and_marks_stay_as_they_are(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "dos").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    await calls(edit_file, path="dos", old="one\ntwo", new="1\n1.5\n2")
    assert (tmp_path / "dos").read_bytes() == b"\xef\xbb\xbf1\r\n1.5\r\n2\r\nthree\r\n"
    (tmp_path / "mixed").write_bytes(b"one\r\ntwo\nthree\n")
    await calls(edit_file, path="mixed", old="two\nthree", new="2\n3")
    assert (tmp_path / "mixed").read_bytes() == b"one\r\n2\n3\n"
    assert "Only white space or line ends differ" in await calls(edit_file, path="mixed", old="one\n2", new="x")


async def test_what_an_edit_could_spoil_is_refused(calls: Calls, tmp_path: Path) -> None:
    for name, content, said in (
        ("latin", b"one\ngr\xfcn\n", "is not UTF-8 (line 2)"),
        ("wide", "one\n".encode("utf-16"), "is a binary file (or UTF-16)"),
    ):
        (tmp_path / name).write_bytes(content)
        assert said in await calls(edit_file, path=name, old="one", new="two")
        assert (tmp_path / name).read_bytes() == content
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(50 * 1024**3)
    assert "Use the shell" in await calls(edit_file, path="huge", old="one", new="two")


async def test_an_edit_that_changes_nothing_is_said(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    assert "are the same" in await calls(edit_file, path="a", old="one", new="one")
    assert "use write_file" in await calls(edit_file, path="a", old="", new="one")
    assert "There is no file b" in await calls(edit_file, path="b", old="a", new="one")


async def test_readers_see_the_old_file_or_the_new_one_and_nothing_between(calls: Calls, tmp_path: Path) -> None:
    contents = ["a" * 300_000, "b" * 400_000]
    (tmp_path / "a").write_text(contents[0])
    seen: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(len((tmp_path / "a").read_text()))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for number in range(10):
            await calls(write_file, path="a", content=contents[number % 2])
    finally:
        done.set()
        looking.join()
    assert seen <= {300_000, 400_000}


async def test_a_python_file_that_was_just_changed_is_never_run_from_old_bytecode(calls: Calls, tmp_path: Path) -> None:
    """All of this is over within a second or two, and every version has the same length."""
    file = tmp_path / "number.py"
    file.write_text("value = 0\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for new in range(1, 9):
        if new % 2:
            await calls(edit_file, path="number.py", old=f"= {new - 1}", new=f"= {new}")
        else:
            await calls(write_file, path="number.py", content=f"value = {new}\n")
        command = [sys.executable, "-S", "-c", "import number; print(number.value)"]
        ran = await anyio.run_process(command, cwd=tmp_path, env=environment)
        assert ran.stdout.decode() == f"{new}\n"
    assert list((tmp_path / "__pycache__").iterdir()), "bytecode was written, so it could have been used"


async def test_a_python_file_that_was_removed_and_made_anew_is_not_run_from_old_bytecode(
    calls: Calls, tmp_path: Path
) -> None:
    await calls(write_file, path="number.py", content="value = 1\n")
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    old = [cache / "number.cpython-311.pyc", cache / "number.cpython-311-pytest-9.2.0.pyc"]
    others = [cache / "numbers.cpython-311.pyc", cache / "number.txt"]
    for made in (*old, *others):
        made.touch()
    (tmp_path / "number.py").unlink()
    await calls(write_file, path="number.py", content="value = 2\n")
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in others)


async def test_a_cache_that_leads_elsewhere_is_left_alone(calls: Calls, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "number.cpython-311.pyc").touch()
    (tmp_path / "__pycache__").symlink_to(elsewhere)
    await calls(write_file, path="number.py", content="value = 1\n")
    assert (elsewhere / "number.cpython-311.pyc").exists()
