"""Tests for files that are replaced as a whole."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from forkpoint.system.durable_file import install, new_aside, replace_file, sync

KILLED = """
import os, signal, sys
from pathlib import Path
from forkpoint.system.durable_file import replace_file
os.{call} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
replace_file(Path(sys.argv[1]), b"new")
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def test_a_file_is_replaced_and_nothing_else_is_left(file: Path) -> None:
    assert replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert os.listdir(file.parent) == ["file"]


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    assert replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert mode_of(tmp_path / "file") == 0o600


def test_the_mode_of_the_old_file_is_kept_or_changed_as_the_caller_says(file: Path) -> None:
    file.chmod(0o646)
    replace_file(file, b"new")
    assert mode_of(file) == 0o646
    replace_file(file, b"newer", mode=lambda before: 0o600 | before & 0o040)
    assert mode_of(file) == 0o640


def test_the_rights_of_a_group_are_not_given_to_another_group(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(0o664)
    group = file.stat().st_gid

    def refused(handle: int, owner: int, group: int) -> None:
        raise PermissionError

    class Strange:
        st_gid = group + 1

    monkeypatch.setattr("os.fchown", refused)
    monkeypatch.setattr("os.fstat", lambda handle: Strange)
    replace_file(file, b"new")
    monkeypatch.undo()
    assert mode_of(file) == 0o604


def test_nothing_changes_if_the_new_file_is_not_wanted_any_more(file: Path) -> None:
    aside: list[str] = []

    def is_wanted() -> bool:
        aside.extend(path.read_text() for path in file.parent.iterdir() if path != file)
        return False

    assert not replace_file(file, b"new", is_wanted=is_wanted)
    assert aside == ["new"], "the question comes when the new file is complete"
    assert file.read_bytes() == b"old"
    assert os.listdir(file.parent) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_nothing_changes_if_the_disk_refuses(call: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"os.{call}", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert os.listdir(file.parent) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_process_that_is_killed_has_changed_nothing_and_the_next_one_tidies_up(call: str, file: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED.format(call=call), str(file)], timeout=60)
    assert file.read_bytes() == b"old"
    assert len(os.listdir(file.parent)) == 2
    replace_file(file, b"newer")
    assert file.read_bytes() == b"newer"
    assert os.listdir(file.parent) == ["file"]


def test_file_and_folder_are_on_the_disk_before_it_is_done(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def note_replace(aside: Path, path: Path) -> None:
        done.append("rename")
        replace(aside, path)

    monkeypatch.setattr("os.fsync", note_sync)
    monkeypatch.setattr("os.replace", note_replace)
    replace_file(file, b"new")
    assert done == ["file", "rename", "folder"]


def test_a_folder_that_cannot_be_synced_is_an_error_only_where_a_name_must_be_certain(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = new_aside(file)
    aside.write_bytes(b"other")
    sync(aside)
    fsync = os.fsync

    def refuse_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(22, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr("os.fsync", refuse_folders)
    with pytest.raises(OSError, match="Invalid argument"):
        install(aside, file)
    assert replace_file(file, b"new")
    assert file.read_bytes() == b"new"


def test_a_path_aside_is_new_and_only_leftovers_of_the_same_file_are_removed(file: Path) -> None:
    for name in (".file-new-1234", ".file-new-1234-journal", ".file-news", ".other-new-1234", "file-new-1234"):
        (file.parent / name).touch()
    aside = new_aside(file)
    assert not aside.exists()
    assert aside.parent == file.parent
    assert sorted(os.listdir(file.parent)) == [".file-news", ".other-new-1234", "file", "file-new-1234"]
