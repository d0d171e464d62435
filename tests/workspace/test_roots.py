"""Which project a folder belongs to, and that a folder cannot pass itself off as part of another."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from forkpoint.workspace import project_root

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="what git makes is compared with")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own: whose `.git` counts depends on where that is."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def repository(folder: Path) -> Path:
    (folder / ".git" / "objects").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return folder


def worktree(main: Path, folder: Path, name: str = "wt") -> Path:
    """A worktree as git makes it, by hand."""
    entry = main / ".git" / "worktrees" / name
    entry.mkdir(parents=True)
    folder.mkdir(parents=True)
    (entry / "commondir").write_text("../..\n")
    (entry / "gitdir").write_text(f"{folder}/.git\n")
    (folder / ".git").write_text(f"gitdir: {entry}\n")
    return folder


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_folder_in_a_repository_belongs_to_the_repository(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    (main / "src" / "deep").mkdir(parents=True)
    (main / "file.txt").touch()
    assert project_root(main) == main
    assert project_root(main / "src" / "deep") == main
    assert project_root(main / "not" / "there") == main
    assert project_root(main / "file.txt") == main
    assert project_root(str(main / "src" / ".." / "src")) == main


def test_a_folder_without_a_repository_is_its_own_project(tmp_path: Path) -> None:
    (tmp_path / "notes" / "2026").mkdir(parents=True)
    assert project_root(tmp_path / "notes" / "2026") == tmp_path / "notes" / "2026"
    (tmp_path / "notes" / "todo.txt").touch()
    assert project_root(tmp_path / "notes" / "todo.txt") == tmp_path / "notes"


def test_links_are_resolved(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    (main / "src").mkdir()
    (tmp_path / "link").symlink_to(main / "src")
    assert project_root(tmp_path / "link") == main
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert project_root(tmp_path / "loop") == tmp_path / "loop"


def test_a_repository_inside_another_is_its_own_project(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    inner = repository(main / "vendor" / "inner")
    (inner / "src").mkdir()
    assert project_root(inner / "src") == inner


@needs_git
def test_worktrees_belong_to_their_main_repository_and_submodules_to_themselves(tmp_path: Path) -> None:
    main, other, bare = tmp_path / "main", tmp_path / "other", tmp_path / "bare.git"
    for folder in (main, other):
        folder.mkdir()
        git(folder, "init", "-q")
        git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    git(main, "worktree", "add", "-q", str(tmp_path / "wt"), "-b", "one")
    git(main, "worktree", "add", "-q", str(main / ".trees" / "two"), "-b", "two")
    git(main, "submodule", "add", "-q", str(other), "sub")
    git(tmp_path, "clone", "-q", "--bare", str(main), str(bare))
    git(bare, "worktree", "add", "-q", str(tmp_path / "of-bare"), "-b", "three")
    (tmp_path / "wt" / "src").mkdir()
    assert project_root(tmp_path / "wt" / "src") == main
    assert project_root(main / ".trees" / "two") == main
    assert project_root(main / "sub") == main / "sub"
    assert project_root(tmp_path / "of-bare") == bare
    (tmp_path / "link").symlink_to(tmp_path / "wt")
    assert project_root(tmp_path / "link") == main
    shutil.move(tmp_path / "wt", tmp_path / "moved")
    assert project_root(tmp_path / "moved") == tmp_path / "moved", "git would not know it either"


def test_paths_of_a_worktree_may_be_relative(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    folder = worktree(main, tmp_path / "wt")
    (folder / ".git").write_text("gitdir: ../main/.git/worktrees/wt\r\n")
    (main / ".git" / "worktrees" / "wt" / "gitdir").write_text("../../../../wt/.git\n")
    assert project_root(folder) == main


# What others may have put there.


def test_a_folder_that_names_the_worktree_of_another_does_not_become_it(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    real = worktree(main, tmp_path / "wt")
    evil = tmp_path / "evil"
    evil.mkdir()
    shutil.copy(real / ".git", evil / ".git")
    assert project_root(real) == main
    assert project_root(evil) == evil
    shutil.rmtree(real)  # even if the true one is gone
    assert project_root(evil) == evil


def test_a_folder_that_brings_its_own_worktree_entry_does_not_belong_to_what_that_names(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    (main / ".git" / "worktrees").mkdir()
    evil = worktree(repository(tmp_path / "fake"), tmp_path / "evil")
    entry = tmp_path / "fake" / ".git" / "worktrees" / "wt"
    (entry / "commondir").write_text(f"{main}/.git\n")
    assert project_root(evil) == evil
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "worktrees").symlink_to(entry.parent)
    (entry / "commondir").write_text("../../linked\n")
    (evil / ".git").write_text(f"gitdir: {tmp_path}/linked/worktrees/wt\n")
    assert project_root(evil) == evil


def test_a_git_that_names_a_repository_itself_makes_no_part_of_it(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    for name, target in (("file", None), ("link", main / ".git")):
        evil = tmp_path / name
        evil.mkdir()
        if target is None:
            (evil / ".git").write_text(f"gitdir: {main}/.git\n")
        else:
            (evil / ".git").symlink_to(target)
        assert project_root(evil) == evil


@pytest.mark.parametrize(
    "content",
    [b"", b"gitdir:", b"gitdir: /nowhere\n", b"rubbish", b"\xff\xfe", b"gitdir: a\0b", b"gitdir: " + b"x" * 10_000,
     b"gitdir: a\ngitdir: b\n"],
)  # fmt: skip
def test_a_git_that_is_rubbish_makes_a_project_of_its_own_folder(tmp_path: Path, content: bytes) -> None:
    inner = repository(tmp_path / "main") / "inner"
    inner.mkdir()
    (inner / ".git").write_bytes(content)
    assert project_root(inner) == inner


def test_a_git_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("pipe", "loop"):
        folder = tmp_path / name
        folder.mkdir()
        os.mkfifo(folder / ".git") if name == "pipe" else (folder / ".git").symlink_to(folder / ".git")
        assert project_root(folder) == folder


def test_a_repository_at_home_is_not_the_project_of_all_that_is_there(tmp_path: Path, home: Path) -> None:
    repository(home)
    (home / "downloads" / "evil").mkdir(parents=True)
    assert project_root(home) == home
    assert project_root(home / "downloads" / "evil") == home / "downloads" / "evil"
    assert project_root(worktree(home, tmp_path / "wt")) == tmp_path / "wt"
    assert project_root("/") == Path("/")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_another_user_has_put_above_or_in_the_place_of_a_worktree_does_not_count(tmp_path: Path) -> None:
    shared = repository(tmp_path / "shared")
    (shared / "mine").mkdir()
    assert project_root(shared / "mine") == shared
    os.chown(shared / ".git", 12345, 12345)
    assert project_root(shared / "mine") == shared / "mine"
    os.chown(shared / "mine", 12345, 12345)
    assert project_root(shared / "mine") == shared, "all of it is theirs, as in a container"
    folder = worktree(repository(tmp_path / "main"), tmp_path / "wt")
    os.chown(folder / ".git", 12345, 12345)
    assert project_root(folder) == folder


def test_a_folder_that_is_no_repository_is_nobody_s_main_repository(tmp_path: Path) -> None:
    trusted = tmp_path / "downloads"
    claims = trusted / "worktrees" / "x"
    claims.mkdir(parents=True)
    (claims / ".git").write_text("gitdir: .\n")
    (claims / "gitdir").write_text(".git\n")
    (claims / "commondir").write_text("../..\n")
    assert project_root(claims) == claims


def test_links_without_end_make_a_project_of_its_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    for number in range(2000):
        (folder / f"l{number}").symlink_to(folder / f"l{number + 1}")
    (folder / ".git").write_text("gitdir: l0\n")
    assert project_root(folder) == folder
