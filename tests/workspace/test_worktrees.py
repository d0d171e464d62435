"""Worktrees for forks: all that the source has is there, and nothing of the source is touched or run."""

import hashlib
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from forkpoint.workspace import project_root, set_trust, standing
from forkpoint.workspace.folders import record_of
from forkpoint.workspace.git import Git
from forkpoint.workspace.isolation import (
    Kind,
    Made,
    NotMade,
    Removed,
    make,
    origin_of,
    remove,
    workspaces_folder,
    worktree,
)

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="a worktree is git's")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with no settings, and with a place for workspaces."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(tmp_path / "workspaces"))
    return folder


def git(folder: Path, *arguments: str, fails: bool = False) -> str:
    settings = {"user.name": "Ann", "user.email": "ann@example.com", "protocol.file.allow": "always"}
    who = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True)
    assert (done.returncode != 0) == fails, done.stderr
    return os.fsdecode(done.stdout.removesuffix(b"\n"))


@pytest.fixture
def repo(tmp_path: Path, template: Path) -> Path:
    """A repository with two commits."""
    shutil.copytree(template, tmp_path / "repo")
    git(tmp_path / "repo", "status")
    return tmp_path / "repo"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    git(folder, "init", "-q", "-b", "main", "--template=")
    for name in ("hooks", "info"):
        (folder / ".git" / name).mkdir()
    (folder / ".gitignore").write_text("*.log\n.env\nnode_modules/\n")
    (folder / "a.py").write_text("a = 1\n")
    (folder / "src").mkdir()
    (folder / "src" / "b.py").write_text("b = 1\n")
    commit(folder, "first")
    (folder / "a.py").write_text("a = 2\n")
    commit(folder, "second")
    return folder


def commit(folder: Path, message: str = "more") -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def seen(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that can be told of a folder and its index without git: for one that must stay as it was."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(".git/") and name not in (".git/index", ".git/HEAD", ".git/config", ".git/refs/heads/main"):
            continue
        entry = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(entry.st_mode) else b""
        times = () if path.is_dir() else (entry.st_mtime_ns, entry.st_ctime_ns)
        found[name] = (entry.st_mode, content, *times)
    return found


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


# What a worktree has.


def test_a_worktree_has_all_that_is_not_committed_and_the_source_is_not_touched(repo: Path) -> None:
    (repo / "staged.py").write_text("staged\n")
    git(repo, "add", "staged.py")
    (repo / "a.py").write_text("half staged\n")
    git(repo, "add", "a.py")
    (repo / "a.py").write_text("and changed again\n")
    (repo / "src" / "b.py").unlink()
    (repo / "new").mkdir()
    (repo / "new" / "run.sh").write_text("echo\n")
    (repo / "new" / "run.sh").chmod(0o755)
    (repo / "link").symlink_to("a.py")
    (repo / "dangling").symlink_to("nowhere")
    status, head = git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD")
    before = seen(repo)
    made = worktree(repo, "try")
    assert seen(repo) == before
    there = Path(made.path)
    assert git(there, "status", "--porcelain") == status
    assert git(there, "diff") == git(repo, "diff"), "what is staged is staged, and what is not is not"
    assert git(there, "diff", "--cached") == git(repo, "diff", "--cached")
    assert contents(there) == contents(repo)
    assert os.readlink(there / "link") == "a.py"
    assert os.readlink(there / "dangling") == "nowhere"
    assert (there / "new" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (made.kind, made.source, made.branch) == ("worktree", str(repo), "forkpoint/try")
    assert git(there, "symbolic-ref", "HEAD") == "refs/heads/forkpoint/try"
    assert git(there, "rev-parse", "HEAD") == head
    assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"


def test_two_worktrees_do_not_see_each_other(repo: Path) -> None:
    one, two = (Path(worktree(repo, name).path) for name in ("one", "two"))
    (one / "a.py").write_text("one\n")
    commit(one)
    (two / "a.py").write_text("two\n")
    assert [(folder / "a.py").read_text() for folder in (repo, one, two)] == ["a = 2\n", "one\n", "two\n"]
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "log", "--format=%s", "-1", "forkpoint/one") == "more"


def test_it_can_be_stored_as_json(repo: Path) -> None:
    made = worktree(repo, "try")
    again = msgspec.json.decode(msgspec.json.encode(made), type=Made)
    assert again == made
    assert remove(again).removed


def test_names_can_have_anything_in_them(repo: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", b"tab\t\"quote' ", b"-rf", b"  spaces  ", "ü".encode()]
    for name in names:
        with open(os.path.join(os.fsencode(repo), name), "wb") as file:
            file.write(name)
    git(repo, "add", "--", "-rf")
    made = worktree(repo, "../ü b/..x.lock")
    for name in names:
        with open(os.path.join(os.fsencode(made.path), name), "rb") as file:
            assert file.read() == name
    assert Path(made.path).parent == workspaces_folder(), "a name leads nowhere else"
    assert made.branch is not None
    git(repo, "check-ref-format", f"refs/heads/{made.branch}")


def test_a_folder_within_a_repository_gets_the_whole_of_it(repo: Path) -> None:
    made = worktree(repo / "src", "try")
    assert (made.path, made.root) == (f"{workspaces_folder()}/try/src", f"{workspaces_folder()}/try")
    assert contents(Path(made.root)) == contents(repo)
    (repo / "node_modules" / "x").mkdir(parents=True)
    inner = worktree(repo / "node_modules" / "x", "inner")
    assert os.listdir(inner.path) == [], "what is ignored is not there, but the folder to work in is"


def test_what_is_ignored_stays_behind_and_is_named(repo: Path) -> None:
    (repo / ".env").write_text("SECRET=1")
    (repo / "node_modules" / "x").mkdir(parents=True)
    (repo / "node_modules" / "x" / "index.js").touch()
    made = worktree(repo, "try")
    assert not (Path(made.path) / ".env").exists()
    assert made.notes == ("2 entries that git ignores are not here: .env, node_modules/",)
    assert worktree(repo / "src", "other").notes == made.notes


def test_large_files_are_not_put_into_the_repository(repo: Path) -> None:
    with (repo / "large.bin").open("wb") as file:
        file.truncate(3_000_000_000)
        file.seek(1_000_000_000)
        file.write(b"here")
    objects = sorted((repo / ".git" / "objects").rglob("*"))
    there = Path(worktree(repo, "try").path) / "large.bin"
    assert there.stat().st_size == 3_000_000_000
    assert there.stat().st_blocks * 512 < 10_000_000, "holes stay holes"
    with there.open("rb") as file:
        file.seek(1_000_000_000)
        assert file.read(5) == b"here\0"
    assert sorted((repo / ".git" / "objects").rglob("*")) == objects


def test_the_same_name_again_gets_a_number_and_so_does_a_branch_that_is_left(repo: Path) -> None:
    assert worktree(repo, "try").branch == "forkpoint/try"
    assert worktree(repo, "try").branch == "forkpoint/try-2"
    git(repo, "branch", "forkpoint/other")
    made = worktree(repo, "other")
    assert (made.path, made.branch) == (f"{workspaces_folder()}/other", "forkpoint/other.2")


def test_two_at_the_same_moment_get_two(repo: Path) -> None:
    made: list[Made] = []
    threads = [threading.Thread(target=lambda: made.append(worktree(repo, "try"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {one.branch for one in made} == {"forkpoint/try", *(f"forkpoint/try-{n}" for n in (2, 3, 4))}
    assert len({one.path for one in made}) == 4
    assert all(contents(Path(one.path)) == contents(repo) for one in made)
    assert all(remove(one).removed for one in made)


# How the source may stand.


def test_a_detached_head_and_a_worktree_can_be_forked_too(repo: Path) -> None:
    git(repo, "checkout", "-q", "--detach", "HEAD~1")
    one = worktree(repo, "one")
    assert git(Path(one.path), "log", "--format=%s") == "first"
    (Path(one.path) / "a.py").write_text("in one\n")
    two = worktree(Path(one.path), "two")
    assert (Path(two.path) / "a.py").read_text() == "in one\n"
    assert (two.repository, two.origin) == (str(repo / ".git"), str(repo))
    assert project_root(two.path) == repo


def test_a_merge_that_is_under_way_goes_on_in_both(repo: Path) -> None:
    git(repo, "checkout", "-q", "-b", "other", "HEAD~1")
    (repo / "a.py").write_text("other\n")
    theirs = commit(repo)
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "other", fails=True)
    status = git(repo, "status", "--porcelain")
    made = worktree(repo, "try")
    there = Path(made.path)
    assert git(there, "status", "--porcelain") == status == "UU a.py"
    assert made.notes == ("A merge is under way in the source, and goes on here by itself",)
    (there / "a.py").write_text("both\n")
    commit(there)
    assert git(there, "rev-parse", "HEAD^2") == theirs
    assert git(repo, "status", "--porcelain") == status


def test_a_rebase_stays_with_the_source(repo: Path) -> None:
    git(repo, "checkout", "-q", "-b", "other", "HEAD~1")
    (repo / "a.py").write_text("other\n")
    commit(repo)
    git(repo, "rebase", "main", fails=True)
    made = worktree(repo, "try")
    assert made.notes == ("A rebase is under way in the source, and not here: the files are as they are there",)
    assert contents(Path(made.path)) == contents(repo)
    git(Path(made.path), "rebase", "--continue", fails=True)
    assert "rebase in progress" in git(repo, "status")


def test_a_sparse_checkout_is_as_sparse(repo: Path) -> None:
    (repo / "docs").mkdir()
    (repo / "docs" / "c.md").write_text("c\n")
    commit(repo)
    git(repo, "sparse-checkout", "set", "src")
    made = worktree(repo, "try")
    assert sorted(contents(Path(made.path))) == sorted(contents(repo)) == [".gitignore", "a.py", "src/b.py"]
    assert git(Path(made.path), "status", "--porcelain") == ""
    git(Path(made.path), "sparse-checkout", "disable")
    assert (Path(made.path) / "docs" / "c.md").read_text() == "c\n"
    assert not (repo / "docs").exists()


def test_a_split_index_with_a_cache_becomes_a_plain_one(repo: Path) -> None:
    git(repo, "update-index", "--split-index", "--force-untracked-cache")
    (repo / "a.py").write_text("changed\n")
    git(repo, "add", "a.py")
    git(repo, "status")
    there = Path(worktree(repo, "try").path)
    done = subprocess.run(["git", "status", "--porcelain"], cwd=there, capture_output=True)
    assert (done.stdout, done.stderr) == (b"M  a.py\n", b"")


def test_submodules_and_repositories_within_are_empty_or_missing_and_named(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "x").touch()
    commit(other)
    git(repo, "submodule", "add", "-q", str(other), "sub")
    git(repo, "commit", "-q", "-m", "sub")
    shutil.copytree(other, repo / "inner")
    made = worktree(repo, "try")
    assert made.notes == (
        "1 submodule is empty here: sub. `git submodule update --init` fills them",
        "1 repository within it is not here: inner/",
    )
    assert os.listdir(Path(made.path) / "sub") == []
    assert git(Path(made.path), "status", "--porcelain") == ""
    with pytest.raises(NotMade, match="it is a submodule"):
        worktree(repo / "sub", "sub")
    assert remove(made).removed


def test_files_that_a_filter_has_changed_are_as_the_source_has_them(repo: Path) -> None:
    """As git-lfs does it: the repository has a pointer, and the folder has the file."""
    git(repo, "config", "filter.upper.clean", "tr a-z A-Z")
    git(repo, "config", "filter.upper.smudge", "tr A-Z a-z")
    (repo / ".gitattributes").write_text("*.big filter=upper\n")
    (repo / "x.big").write_text("large\n")
    commit(repo)
    assert git(repo, "cat-file", "-p", "HEAD:x.big") == "LARGE"
    made = worktree(repo, "try")
    assert (Path(made.path) / "x.big").read_text() == "large\n"
    assert git(Path(made.path), "status", "--porcelain") == ""
    assert remove(made).removed


def test_links_that_lead_back_to_the_source_are_named(repo: Path) -> None:
    (repo / "back").symlink_to(repo / "a.py")
    made = worktree(repo, "try")
    assert made.notes == (
        "1 link leads to the source by its full path, so what is written through it changes the source",
    )


# What cannot be forked: nothing is left of it.


def nothing_left(repo: Path | None = None) -> bool:
    there = os.listdir(workspaces_folder()) if workspaces_folder().exists() else []
    branches = git(repo, "branch", "--list", "forkpoint*") if repo is not None else ""
    entries = git(repo, "worktree", "list", "--porcelain").count("worktree ") if repo is not None else 1
    return (there, branches, entries) == ([], "", 1)


def test_no_repository_and_one_without_a_commit_are_refused(tmp_path: Path, home: Path) -> None:
    (plain := tmp_path / "plain").mkdir()
    with pytest.raises(NotMade, match="it is in no git repository; use a copy"):
        worktree(plain, "try")
    git(plain, "init", "-q")
    (plain / "x").touch()
    with pytest.raises(NotMade, match="has no commit yet"):
        worktree(plain, "try")
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    with pytest.raises(NotMade, match="it is in no git repository"):
        worktree(tmp_path / "bare.git", "try")
    git(home, "init", "-q")
    commit_empty = ("commit", "-q", "--allow-empty", "-m", "x")
    git(home, *commit_empty)
    with pytest.raises(NotMade, match="would not be trusted with"):
        worktree(home, "try")
    assert nothing_left(home)


def test_without_git_or_with_an_old_one_it_says_so(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bin := tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(bin))
    with pytest.raises(NotMade, match="git is not installed"):
        worktree(repo, "try")
    (bin / "git").write_text("#!/bin/sh\necho git version 2.30.9\n")
    (bin / "git").chmod(0o755)
    with pytest.raises(NotMade, match=r"git version 2\.30\.9 is too old: 2\.31 or later is needed"):
        worktree(repo, "try")
    monkeypatch.setenv("PATH", "bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotMade, match="git is not installed"):
        worktree(repo, "try")
    assert nothing_left()


def test_a_failure_half_way_leaves_nothing_behind(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / "new.txt").write_text("new")
    before = seen(repo)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "new.txt")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        patch.setattr("forkpoint.workspace.files.reflink", lambda *_: False)
        with pytest.raises(NotMade, match=r"No space left on device: new\.txt"):
            worktree(repo, "try")
    assert nothing_left(repo)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("forkpoint.workspace.worktrees.keep", stopped)
        with pytest.raises(KeyboardInterrupt):
            worktree(repo, "try")
    assert nothing_left(repo)
    assert seen(repo) == before
    git(repo, "branch", "forkpoint")
    with pytest.raises(NotMade, match="refs/heads/forkpoint"):
        worktree(repo, "try")
    git(repo, "branch", "-D", "forkpoint")
    assert nothing_left(repo)


def test_the_place_for_workspaces_cannot_be_within_the_source(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(repo / "deep" / "down"))
    with pytest.raises(NotMade, match="is within it; name another one with FORKPOINT_WORKSPACES"):
        worktree(repo / "src", "try")
    assert not (repo / "deep").exists()


# A repository that somebody else has made.


def test_nothing_that_a_repository_names_is_run(repo: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\necho $0 $@ >> {ran}\ncat\n")
    program.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"):
        shutil.copy(program, repo / ".git" / "hooks" / hook)
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "filter.a=b.process", "core.pager",
                 "core.sshCommand", "diff.external", "hook.evil.command", "core.alternateRefsCommand"):  # fmt: skip
        git(repo, "config", name, str(program))
    git(repo, "config", "filter.a=b.required", "true")
    git(repo, "config", "hook.evil.event", "reference-transaction")
    (repo / ".gitattributes").write_text("*.py filter=evil\n*.txt filter=a=b\n")
    (repo / "x.txt").write_text("x\n")
    (repo / "a.py").write_text("changed\n")
    made = worktree(repo, "try")
    os.utime(Path(made.path) / "src" / "b.py")
    assert contents(Path(made.path)) == contents(repo)
    assert not remove(made).removed, "and here git has to look at the files"
    assert not ran.exists(), ran.read_text()
    git(repo, "status")
    assert ran.exists(), "this test would see it if something ran"


def test_an_index_cannot_name_what_is_elsewhere(repo: Path, tmp_path: Path) -> None:
    """Git reads an index as it is, so one that came with a repository can say anything."""
    (tmp_path / "secret.txt").write_text("secret")
    (repo / "link").symlink_to(tmp_path)
    (repo / "link.log").symlink_to(tmp_path)  # which is ignored
    (repo / ".git" / "hooks" / "x").write_text("evil")
    (repo / "node_modules" / ".git").mkdir(parents=True)
    (repo / "node_modules" / ".git" / "config").write_text("evil")
    evil = [b"../secret.txt", b".git/hooks/x", b"link/secret.txt", b"link.log/secret.txt", b"/etc/passwd",
            b"src/../../secret.txt", b"node_modules/.git/config", b"src//b.py", b"./a.py"]  # fmt: skip
    plain = [b"%02d" % number + b"x" * (len(name) - 2) for number, name in enumerate(evil)]
    for name in plain:
        (repo / os.fsdecode(name)).touch()
    git(repo, "add", "-A")
    index = repo / ".git" / "index"
    content = index.read_bytes()
    for name, other in zip(plain, evil, strict=True):
        (repo / os.fsdecode(name)).unlink()
        content = content.replace(name, other)
    index.write_bytes(content[:-20] + hashlib.sha1(content[:-20], usedforsecurity=False).digest())
    assert set(evil) <= set(Git(repo).names("ls-files", "-z")), "git does not mind"
    made = worktree(repo, "try")
    assert sorted(contents(Path(made.path))) == [".gitignore", "a.py", "src/b.py"]
    assert sorted(os.listdir(made.path)) == [".git", ".gitignore", "a.py", "link", "src"]
    assert sorted(os.listdir(workspaces_folder())) == ["try", "try.json"]


def test_a_repository_that_has_its_files_or_itself_elsewhere_is_refused(repo: Path, tmp_path: Path) -> None:
    """A folder could make itself a worktree of a project that is trusted."""
    (evil := tmp_path / "evil").mkdir()
    (evil / ".git").write_text(f"gitdir: {repo}/.git\n")
    with pytest.raises(NotMade, match="its repository is kept elsewhere"):
        worktree(evil, "try")
    git(tmp_path, "init", "-q", "other")
    git(tmp_path / "other", "commit", "-q", "--allow-empty", "-m", "x")
    git(tmp_path / "other", "config", "core.worktree", str(repo))
    with pytest.raises(NotMade, match="says that its files are elsewhere"):
        worktree(tmp_path / "other", "try")
    assert nothing_left(repo)


def test_what_a_hook_of_git_has_set_does_not_lead_it_astray(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(tmp_path))
    made = worktree(repo, "try")
    assert contents(Path(made.path)) == contents(repo)


def test_it_is_trusted_like_its_source(repo: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    set_trust(repo, "trusted", config)
    made = worktree(repo, "try")
    assert standing(made.path, config).trust == "trusted"
    assert origin_of(Path(made.path) / "src") == repo / "src"
    set_trust(repo, "untrusted", config)
    assert standing(made.path, config).trust == "untrusted"


@pytest.mark.parametrize("kind", ["worktree", "copy"])
def test_a_repository_that_was_brought_into_it_is_a_project_of_its_own(
    repo: Path, template: Path, tmp_path: Path, kind: Kind
) -> None:
    config = tmp_path / "config.toml"
    set_trust(repo, "trusted", config)
    made = Path(make(kind, repo, "try").path)
    git(made, "clone", "-q", str(template), "vendor")
    assert standing(made, config).trust == "trusted"
    assert origin_of(made / "vendor" / "src") == made / "vendor" / "src"
    assert standing(made / "vendor", config).trust == "undecided"
    assert standing(made / "vendor" / "src", config).trust == "undecided"
    set_trust(made / "vendor", "untrusted", config)
    assert standing(made / "vendor" / "src", config).trust == "untrusted"
    assert standing(repo, config).trust == "trusted", "nobody has said anything of the source"
    set_trust(made / "vendor", None, config)
    set_trust(repo, "untrusted", config)
    assert standing(made / "vendor" / "src", config).trust == "untrusted", "as it would be in the source itself"
    again = Path(make(kind, made / "vendor", "again").path)
    assert standing(again, config).trust == "untrusted"


# Removing it.


def test_one_that_nobody_has_touched_goes_with_its_branch(repo: Path) -> None:
    (repo / "a.py").write_text("changed\n")
    (repo / "new.txt").touch()
    before = seen(repo)
    made = worktree(repo, "try")
    git(Path(made.path), "status")
    (Path(made.path) / "build.log").write_text("what git ignores is not asked about")
    assert remove(made) == Removed(True)
    assert nothing_left(repo)
    assert seen(repo) == before
    again = remove(made)
    assert (again.removed, again.why) == (False, "there is no record here that it was made for this")


@pytest.mark.parametrize("what", ["changed", "new", "deleted", "same size and time", "staged"])
def test_one_with_changes_stays_and_says_which(repo: Path, what: str) -> None:
    made = worktree(repo, "try")
    file = Path(made.path) / "a.py"
    match what:
        case "changed":
            file.write_text("mine\n")
        case "new":
            file = Path(made.path) / "mine.py"
            file.touch()
        case "deleted":
            file.unlink()
        case "staged":
            file.write_text("mine\n")
            git(Path(made.path), "add", "a.py")
        case "same size and time":
            before = file.stat()
            file.write_text("a = 3\n")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = remove(made)
    assert (done.removed, done.why) == (False, f"it has 1 change that no commit has: {file.name}")
    assert Path(made.path).is_dir()
    assert "forkpoint/try" in git(repo, "branch", "--list", "forkpoint/*")


def test_what_was_taken_over_and_then_changed_stays(repo: Path) -> None:
    (repo / "a.py").write_text("not committed\n")
    made = worktree(repo, "try")
    (Path(made.path) / "a.py").write_text("not committed, and changed\n")
    assert remove(made).why == "it has 1 change that no commit has: a.py"


def test_commits_that_no_other_branch_has_keep_it_until_one_has_them(repo: Path) -> None:
    made = worktree(repo, "try")
    there = Path(made.path)
    (there / "a.py").write_text("mine\n")
    commit(there)
    assert remove(made).why == "it has 1 commit that no other branch has"
    git(there, "checkout", "-q", "--detach", "main")
    assert remove(made).why == "it has 1 commit that no other branch has", "its branch has, though it is elsewhere"
    git(there, "checkout", "-q", "--detach", "forkpoint/try")
    assert remove(made).why == "it has 1 commit that no other branch has"
    git(there, "commit", "-q", "--allow-empty", "-m", "on no branch")
    assert remove(made).why == "it has 2 commits that no other branch has"
    git(there, "branch", "kept")
    assert remove(made).removed
    assert nothing_left(repo)
    assert git(repo, "log", "--format=%s", "-1", "kept") == "on no branch"


def test_its_branch_stays_where_somebody_else_has_checked_it_out(repo: Path, tmp_path: Path) -> None:
    made = worktree(repo, "try")
    git(Path(made.path), "checkout", "-q", "-b", "mine")
    git(repo, "worktree", "add", "-q", str(tmp_path / "elsewhere"), "forkpoint/try")
    assert remove(made).removed
    assert git(tmp_path / "elsewhere", "log", "--format=%s", "-1") == "second"
    assert "mine" in git(repo, "branch")


def test_a_locked_one_and_one_with_submodules_or_a_rebase_stay(repo: Path) -> None:
    made = worktree(repo, "try")
    git(repo, "worktree", "lock", made.path)
    assert remove(made).why == "it is locked (`git worktree unlock`)"
    git(repo, "worktree", "unlock", made.path)
    entry = Path(git(Path(made.path), "rev-parse", "--absolute-git-dir"))
    (entry / "modules").mkdir()
    assert remove(made).why == "submodules are checked out there"
    (entry / "modules").rmdir()
    (Path(made.path) / "a.py").touch()
    (entry / "rebase-merge").mkdir()
    assert remove(made).why == "a merge, a rebase or the like is under way there"
    (entry / "rebase-merge").rmdir()
    assert remove(made).removed


@pytest.mark.parametrize("committed", [True, False])
def test_one_with_a_repository_of_its_own_within_it_stays(repo: Path, committed: bool) -> None:
    made = worktree(repo, "try")
    inner = Path(made.path) / "new"
    inner.mkdir()
    git(inner, "init", "-q", "-b", "main")
    (inner / "work.txt").write_text("hours")
    if committed:
        commit(inner)
    done = remove(made)
    assert (done.removed, done.why) == (False, "there are repositories within it: new")
    assert (inner / "work.txt").read_text() == "hours"
    shutil.rmtree(inner)
    assert remove(made).removed


def test_one_with_a_submodule_that_somebody_has_filled_stays(repo: Path, template: Path) -> None:
    git(repo, "submodule", "add", "-q", str(template), "sub")
    commit(repo)
    made = worktree(repo, "try")
    git(Path(made.path), "clone", "-q", str(template), "sub")
    done = remove(made)
    assert (done.removed, done.why) == (False, "there are repositories within it: sub")
    shutil.rmtree(Path(made.path) / "sub")
    (Path(made.path) / "sub").mkdir()
    assert remove(made).removed, "an empty one is as it was made"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_one_with_changes_that_git_does_not_look_for_stays(repo: Path, flag: str) -> None:
    git(repo, "update-index", flag, "a.py")
    (repo / "a.py").write_text("of this machine\n")
    made = worktree(repo, "try")
    (Path(made.path) / "a.py").write_text("of the fork\n")
    done = remove(made)
    assert not done.removed
    assert (done.why or "").endswith("(assume-unchanged, skip-worktree): a.py")
    assert (Path(made.path) / "a.py").read_text() == "of the fork\n"
    assert remove(worktree(repo, "other")).removed, "one that nobody has touched goes"


def test_what_is_not_what_was_made_is_left_alone(repo: Path, tmp_path: Path) -> None:
    made = worktree(repo, "try")
    assert not remove(msgspec.structs.replace(made, token="another")).removed
    assert not remove(msgspec.structs.replace(made, root=str(repo))).removed
    moved = Path(made.root).rename(tmp_path / "moved")
    Path(made.root).mkdir()
    (Path(made.root) / "mine").touch()
    assert not remove(made).removed
    assert (Path(made.root) / "mine").exists()
    shutil.rmtree(made.root)
    Path(made.root).symlink_to(moved)
    assert not remove(made).removed
    assert (moved / "a.py").exists()


def test_one_whose_folder_is_gone_leaves_nothing_in_the_repository(repo: Path) -> None:
    made = worktree(repo, "try")
    shutil.rmtree(made.root)
    assert remove(made).removed
    assert nothing_left(repo)
    assert record_of(Path(made.root)) is None


def test_one_whose_repository_is_gone_stays(repo: Path) -> None:
    made = worktree(repo, "try")
    shutil.rmtree(repo)
    done = remove(made)
    assert not done.removed
    assert done.why is not None
    assert "not a git repository" in done.why
    assert (Path(made.path) / "a.py").exists()


def test_what_is_read_only_goes_too(repo: Path) -> None:
    made = worktree(repo, "try")
    (Path(made.path) / "node_modules").mkdir()
    (Path(made.path) / "node_modules" / "x").touch()
    (Path(made.path) / "node_modules").chmod(0o555)
    assert remove(made).removed
    assert not Path(made.root).exists()


def test_make_knows_both_kinds(repo: Path) -> None:
    assert [make(kind, repo, kind).kind for kind in ("worktree", "copy")] == ["worktree", "copy"]
