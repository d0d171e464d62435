"""Copies for forks: all that the source has, none of it shared, and what happens to what cannot be copied."""

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from forkpoint.workspace import files
from forkpoint.workspace.folders import record_of
from forkpoint.workspace.isolation import Made, NotMade, Removed, copy, origin_of, remove, workspaces_folder

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="what git takes a copy for is looked at")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with no settings, and with a place for workspaces."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(tmp_path / "workspaces"))
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("a\n")
    (folder / "src" / "deep" / "run.sh").write_text("echo\n")
    (folder / "src" / "deep" / "run.sh").chmod(0o750)
    (folder / "empty").mkdir()
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def seen(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Names, modes and contents, links as links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = mode, content
    return found


# What a copy has.


def test_a_copy_has_all_that_the_source_has_and_shares_none_of_it(source: Path) -> None:
    (source / "hard").hardlink_to(source / "a.txt")
    (source / "link").symlink_to("src/deep")
    (source / "dangling").symlink_to("nowhere")
    (source / "empty").chmod(0o555)
    before = seen(source)
    made = copy(source, "try")
    there = Path(made.path)
    assert seen(there) == before
    assert (made.kind, made.source, made.branch, made.notes) == ("copy", str(source), None, ())
    assert there.parent == workspaces_folder()
    for path in there.rglob("*"):
        if path.is_file():
            assert path.stat().st_nlink == 1, "a hard link is the same file"
    (there / "a.txt").write_text("changed\n")
    (there / "link" / "new").touch()
    (there / "src" / "deep" / "run.sh").unlink()
    assert seen(source) == before
    (source / "a.txt").write_text("changed in the source\n")
    assert (there / "a.txt").read_text() == "changed\n"


def test_times_are_kept_and_rights_to_act_as_another_are_not(source: Path) -> None:
    os.utime(source / "a.txt", ns=(1, 1_234_567_890_123_456_000))
    (source / "a.txt").chmod(0o6755)
    found = (Path(copy(source, "try").path) / "a.txt").stat()
    assert (found.st_mtime_ns, found.st_mode & 0o7777) == (1_234_567_890_123_456_000, 0o755)


def test_bytes_are_the_same_with_and_without_reflinks(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(100_000) + bytes(300_000) + os.urandom(9_000_001)
    (source / "large.bin").write_bytes(content)
    (source / "nothing").touch()
    assert (Path(copy(source, "by default").path) / "large.bin").read_bytes() == content
    monkeypatch.setattr(files, "reflink", lambda *_: False)
    assert (Path(copy(source, "by ranges").path) / "large.bin").read_bytes() == content

    def refused(*_: object) -> int:
        raise OSError(18, "another file system")

    monkeypatch.setattr(os, "copy_file_range", refused, raising=False)
    assert (Path(copy(source, "by bytes").path) / "large.bin").read_bytes() == content
    monkeypatch.delattr(os, "SEEK_DATA", raising=False)
    assert (Path(copy(source, "holes").path) / "large.bin").read_bytes() == content


def test_a_reflink_is_made_where_the_file_system_has_them(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 10_000)
    with (tmp_path / "one").open("rb") as one, (tmp_path / "two").open("wb") as two:
        if not files.reflink(one.fileno(), two.fileno()):
            pytest.skip("this file system has none")
    assert (tmp_path / "two").read_bytes() == b"x" * 10_000
    (tmp_path / "two").write_bytes(b"y")
    assert (tmp_path / "one").read_bytes() == b"x" * 10_000


def test_holes_stay_holes(source: Path) -> None:
    with (source / "sparse.bin").open("wb") as file:
        file.truncate(2_000_000_000)
        file.seek(1_500_000_000)
        file.write(b"here")
    there = Path(copy(source, "try").path) / "sparse.bin"
    assert there.stat().st_size == 2_000_000_000
    assert there.stat().st_blocks * 512 < 10_000_000
    with there.open("rb") as file:
        file.seek(1_500_000_000)
        assert file.read(5) == b"here\0"


def test_names_can_have_anything_in_them(source: Path) -> None:
    for name in (b"new\nline", b"\xff\xfe", b"-rf", b" "):
        with open(os.path.join(os.fsencode(source), name), "wb") as file:
            file.write(name)
    assert seen(Path(copy(source, "a/../b\n").path)) == seen(source)


def test_what_is_no_file_is_left_out_and_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(source / "pipe")
    monkeypatch.chdir(source)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")  # by a short name: a socket's is limited
        made = copy(source, "try")
    assert made.notes == ("2 entries are no file, folder or link, and not copied: pipe, socket",)
    assert sorted(os.listdir(made.path)) == ["a.txt", "empty", "src"]


def test_links_that_lead_back_to_the_source_are_named(source: Path) -> None:
    (source / "back").symlink_to(source / "a.txt")
    (source / "away").symlink_to("/etc")
    (source / "beside").symlink_to(f"{source}-other")
    (note,) = copy(source, "try").notes
    assert note.startswith("1 link leads to the source by its full path")


def test_the_same_name_again_gets_a_number_also_at_the_same_moment(source: Path) -> None:
    made: list[Made] = []
    threads = [threading.Thread(target=lambda: made.append(copy(source, "try"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(Path(one.path).name for one in made) == ["try", "try-2", "try-3", "try-4"]
    assert all(seen(Path(one.path)) == seen(source) for one in made)


# A repository in it.


@needs_git
def test_a_repository_is_copied_and_is_its_own(source: Path, tmp_path: Path) -> None:
    git(source, "init", "-q", "-b", "main")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "first")
    git(source, "worktree", "add", "-q", "--detach", str(tmp_path / "wt"))
    (source / ".git" / "index.lock").touch()
    there = Path(copy(source, "try").path)
    assert git(there, "rev-parse", "--show-toplevel") == str(there)
    (there / "a.txt").write_text("mine\n")
    git(there, "commit", "-q", "-a", "-m", "mine, though somebody has locked the source")
    assert git(source, "log", "--format=%s") == "first"
    assert git(there, "worktree", "list").count("\n") == 0, "the worktrees are the source's"


@needs_git
def test_git_in_a_copy_of_a_worktree_cannot_change_the_source(source: Path, tmp_path: Path) -> None:
    git(source, "init", "-q", "-b", "main")
    git(source, "commit", "-q", "--allow-empty", "-m", "first")
    git(source, "worktree", "add", "-q", "--detach", str(tmp_path / "wt"))
    (tmp_path / "wt" / "x").touch()
    made = copy(tmp_path / "wt", "try")
    assert os.listdir(made.path) == ["x"]
    assert made.notes == ("There is no repository here, as that of the source is elsewhere: .git",)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".git").symlink_to(source / ".git")
    assert os.listdir(copy(tmp_path / "linked", "other").path) == []


@needs_git
def test_submodules_of_a_copy_are_the_copys(source: Path, tmp_path: Path) -> None:
    git(source, "init", "-q")
    git(tmp_path, "init", "-q", "other")
    git(tmp_path / "other", "commit", "-q", "--allow-empty", "-m", "x")
    git(source, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "other"), "sub")
    there = Path(copy(source, "try").path)
    assert git(there / "sub", "rev-parse", "--absolute-git-dir") == str(there / ".git" / "modules" / "sub")
    assert git(there / "sub", "rev-parse", "--show-toplevel") == str(there / "sub")


@needs_git
def test_a_repository_that_works_on_other_files_is_refused(source: Path, tmp_path: Path) -> None:
    git(source, "init", "-q")
    git(source, "config", "core.worktree", str(source))
    with pytest.raises(NotMade, match=r"core\.worktree"):
        copy(source, "try")
    assert os.listdir(workspaces_folder()) == []


@needs_git
def test_so_is_one_with_such_a_repository_further_down(source: Path) -> None:
    git(source, "init", "-q")
    (source / "src" / "fixture" / ".git").mkdir(parents=True)
    git(source / "src", "init", "-q")
    assert copy(source, "try").root, "one that is none, and one that works on its own files"
    git(source / "src", "config", "core.worktree", str(source / "src"))
    with pytest.raises(NotMade, match=r"core\.worktree"):
        copy(source, "other")


@needs_git
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_another_user_does_not_become_ours(source: Path) -> None:
    git(source, "init", "-q")
    for folder, _, names in os.walk(source):
        for name in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(name, 12345, 12345)
    made = copy(source, "try")
    assert made.notes == ("A repository of another user, which git does not use, is not copied: .git",)
    assert not (Path(made.path) / ".git").exists()


def test_a_copy_needs_no_git(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    made = copy(source, "try")
    assert seen(Path(made.path)) == seen(source)
    assert remove(made).removed


# What cannot be copied: nothing is left of it.


def test_a_folder_is_not_copied_into_itself(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(source / "src" / "forks"))
    before = seen(source)
    with pytest.raises(NotMade, match="is within it"):
        copy(source, "try")
    (source.parent / "link").symlink_to(source)
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(source.parent / "link" / "forks"))
    with pytest.raises(NotMade, match="is within it"):
        copy(source, "try")
    with pytest.raises(NotMade, match="there is no such folder"):
        copy(source / "a.txt", "try")
    assert seen(source) == before


def test_a_copy_can_be_copied_and_knows_where_it_came_from_first(source: Path) -> None:
    one = copy(source, "try")
    two = copy(Path(one.path) / "src", "try")
    assert seen(Path(two.path)) == seen(source / "src")
    assert (two.source, two.origin) == (str(Path(one.path) / "src"), str(source / "src"))
    assert remove(one).removed
    assert origin_of(Path(two.path) / "deep") == source / "src" / "deep"


def test_a_failure_half_way_leaves_nothing_behind(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, ns: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", fails)
        with pytest.raises(NotMade, match="No space left on device"):
            copy(source, "try")
    assert os.listdir(workspaces_folder()) == []
    (workspaces_folder() / "try").mkdir()
    assert Path(copy(source, "try").path).name == "try-2", "a folder of somebody else is not used"


def test_a_place_that_cannot_be_made_is_said(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(source / "a.txt" / "x"))
    monkeypatch.setattr("forkpoint.workspace.folders.workspaces_folder", lambda: tmp_path / "file" / "x")
    (tmp_path / "file").touch()
    with pytest.raises(NotMade, match="Not a directory"):
        copy(source, "try")


def test_what_goes_while_it_is_copied_is_not_in_the_copy(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "zzz").write_text("z")
    (source / "gone").mkdir()
    (source / "gone" / "x").touch()
    true = files.Copying.add

    def add(self: files.Copying, name: bytes) -> None:
        if name == b"a.txt":
            (source / "zzz").unlink()
            shutil.rmtree(source / "gone")
        true(self, name)

    monkeypatch.setattr(files.Copying, "add", add)
    assert sorted(os.listdir(copy(source, "try").path)) == ["a.txt", "empty", "src"]


# Trust.


def test_only_what_was_made_has_an_origin(source: Path, tmp_path: Path) -> None:
    made = copy(source, "try")
    assert origin_of(made.path) == source
    assert origin_of(source) == source
    assert origin_of(workspaces_folder()) == workspaces_folder()
    (tmp_path / "evil").mkdir()
    shutil.copy(f"{made.root}.json", tmp_path / "evil.json")
    assert origin_of(tmp_path / "evil") == tmp_path / "evil", "a record counts only in the user's own place"
    (stranger := workspaces_folder() / "stranger").mkdir()
    assert origin_of(stranger) == stranger


def test_a_folder_is_not_trusted_like_what_a_link_in_its_source_leads_to(source: Path, tmp_path: Path) -> None:
    made = copy(source, "try")
    (tmp_path / "trusted").mkdir()
    shutil.rmtree(source / "src")
    (source / "src").symlink_to(tmp_path / "trusted")
    assert origin_of(Path(made.path) / "src") == source


# Removing it.


def test_one_that_nobody_has_touched_goes(source: Path) -> None:
    (source / "empty").chmod(0o555)
    made = copy(source, "try")
    assert record_of(Path(made.root)) == made
    (Path(made.path) / "a.txt").read_text()
    assert remove(made) == Removed(True)
    assert os.listdir(workspaces_folder()) == []


@needs_git
def test_looking_at_it_with_git_does_not_keep_it_and_neither_does_what_tools_printed(source: Path) -> None:
    git(source, "init", "-q")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "first")
    made = copy(source, "try")
    index = (Path(made.path) / ".git" / "index").stat()
    git(Path(made.path), "status")
    assert (Path(made.path) / ".git" / "index").stat() != index
    (Path(made.path) / ".forkpoint" / "output").mkdir(parents=True)
    (Path(made.path) / ".forkpoint" / "output" / "1.txt").touch()
    assert remove(made).removed


@pytest.mark.parametrize("what", ["changed", "same size and time", "new", "deleted", "mode", "link"])
def test_one_that_has_changed_stays(source: Path, what: str) -> None:
    (source / "link").symlink_to("a.txt")
    made = copy(source, "try")
    file = Path(made.path) / "a.txt"
    match what:
        case "changed":
            file.write_text("changed\n")
        case "same size and time":
            before = file.stat()
            file.write_text("b\n")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "new":
            (Path(made.path) / "src" / "new").touch()
        case "deleted":
            file.unlink()
        case "mode":
            file.chmod(0o777)
        case "link":
            (Path(made.path) / "link").unlink()
            (Path(made.path) / "link").symlink_to("b.txt")
    assert remove(made) == Removed(False, "it has changed since it was made")
    assert Path(made.path).is_dir()


def test_one_that_may_be_all_that_is_left_stays(source: Path) -> None:
    made = copy(source, "try")
    shutil.rmtree(source)
    assert remove(made) == Removed(False, f"its source, {source}, is gone, so this may be all that is left")
    shutil.rmtree(made.root)
    assert remove(made).removed
    assert os.listdir(workspaces_folder()) == []
