"""Worktrees: a branch and a folder of a repository for a fork, with everything that is not committed.

Git makes the branch and the entry of the worktree, and no more: the files are copied from the source as they are, and
so is its index. So a fork has each byte that its source has, what is staged is staged, large files are not put into the
repository, and no filter is run. Of the source nothing is written: not its index, its files or its branch.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from forkpoint.workspace.files import Copying, fingerprint
from forkpoint.workspace.folders import (
    Made,
    NotMade,
    Removed,
    counted,
    delete,
    keep,
    new_token,
    origin_of,
    printable,
    room_for,
    some,
)
from forkpoint.workspace.git import Git, GitFailed, alone
from forkpoint.workspace.roots import checkout_and_root, project_root

_MERGE = ("MERGE_HEAD", "MERGE_MODE", "MERGE_MSG")
_UNDER_WAY = {
    "rebase-merge": "A rebase",
    "rebase-apply": "A rebase",
    "CHERRY_PICK_HEAD": "A cherry-pick",
    "REVERT_HEAD": "A revert",
    "BISECT_START": "A bisection",
}
_FILES = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")


def worktree(source: Path, name: str) -> Made:
    """A new branch of the source's repository, and a folder with all that the source has but what git ignores.

    Raises `NotMade`.
    """
    here = Path(os.path.realpath(source))
    checkout, project = checkout_and_root(here)
    git, repository, head = _repository(checkout, project)
    with room_for(name, checkout) as root:
        branch = _new_branch(git, root.name, head)
        try:
            with alone(repository):
                git.run("worktree", "add", "--quiet", "--no-checkout", root, branch)
            if project_root(root) != project:
                raise NotMade("its repository is one that a worktree would not be trusted with; use a copy")
            entry = Path(git.at(root).line("rev-parse", "--absolute-git-dir"))
            notes = _fill(git, checkout, root, entry)
            workspace = root / here.relative_to(checkout)
            workspace.mkdir(parents=True, exist_ok=True)  # it may have nothing but what is ignored
            return keep(
                Made(
                    path=str(workspace),
                    kind="worktree",
                    source=str(here),
                    branch=branch,
                    root=str(root),
                    origin=str(origin_of(checkout)),
                    repository=str(repository),
                    start=head,
                    fingerprint=_fingerprint(git.at(root), root),
                    token=new_token(),
                    notes=notes,
                )
            )
        except BaseException:
            with suppress(OSError):
                delete(root)
            with suppress(NotMade), alone(repository):
                git.run("worktree", "remove", "--force", root)
            with suppress(NotMade):
                git.run("update-ref", "-d", f"refs/heads/{branch}", head)
            raise


def remove_worktree(made: Made) -> Removed:
    """Removes a worktree with its branch, if nothing is lost by that."""
    root, repository, branch = Path(made.root), Path(made.repository or ""), f"refs/heads/{made.branch}"
    try:
        if os.path.lexists(root) and (why := _in_use(Git(root), made, root)) is not None:
            return Removed(False, why)
        git = Git(repository)
        tip = _commit(git, branch)
        if tip is not None and (why := _unshared(git, tip, made)) is not None:
            return Removed(False, why)
        delete(root)
        with alone(repository):
            with suppress(GitFailed):  # somebody has pruned it
                git.run("worktree", "remove", "--force", root)
            worktrees = git.run("worktree", "list", "--porcelain").splitlines()
        if tip is not None and f"branch {branch}".encode() not in worktrees:
            git.run("update-ref", "-d", branch, tip)  # unless it has moved since
    except NotMade as error:
        return Removed(False, str(error))
    return Removed(True)


def _repository(checkout: Path, project: Path) -> tuple[Git, Path, str]:
    """Git in the source, its repository, and the commit that it stands at."""
    if not os.path.lexists(checkout / ".git"):
        raise NotMade("it is in no git repository; use a copy")
    git = Git(checkout)
    if os.path.realpath(git.line("rev-parse", "--show-toplevel")) != str(checkout):
        raise NotMade("its repository says that its files are elsewhere; use a copy")
    repository = Path(os.path.realpath(checkout / git.line("rev-parse", "--git-common-dir")))
    if repository not in (project / ".git", project):
        # What a user said of this folder would not hold for a worktree of that repository.
        raise NotMade("it is a submodule, or its repository is kept elsewhere; use a copy")
    if (head := _commit(git, "HEAD")) is None:
        raise NotMade("its repository has no commit yet; make one, or use a copy")
    return git, repository, head


def _commit(git: Git, name: str) -> str | None:
    """The commit that a name stands for; None if there is none."""
    try:
        return git.line("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except GitFailed:
        return None


def _new_branch(git: Git, name: str, head: str) -> str:
    """A branch that was not there before: if the name is taken, by a fork whose folder is gone, with a number."""
    for number in range(1, 1000):
        branch = f"forkpoint/{name}" if number == 1 else f"forkpoint/{name}.{number}"
        try:
            git.run("update-ref", "-m", "forkpoint: fork", f"refs/heads/{branch}", head, "")
        except GitFailed:
            if not git.succeeds("show-ref", "--verify", "--quiet", f"refs/heads/{branch}"):
                raise
        else:
            return branch
    raise NotMade(f"there are too many branches forkpoint/{name}")


def _fill(git: Git, checkout: Path, root: Path, entry: Path) -> tuple[str, ...]:
    """Gives a worktree the source's index and files. Says what the user is to know."""
    theirs = Path(git.line("rev-parse", "--absolute-git-dir"))
    index = entry / "index"
    if (content := _content(theirs / "index")) is not None:
        index.write_bytes(content)
        git.run("update-index", "--force-write-index", index=index)  # as one file, with nothing of the source's place
    sparse = _content(theirs / "info" / "sparse-checkout")
    if sparse is not None and not (entry / "info" / "sparse-checkout").exists():  # an older git leaves it out
        (entry / "info").mkdir(exist_ok=True)
        (entry / "info" / "sparse-checkout").write_bytes(sparse)
    names = set(git.names(*_FILES, index=index))
    copying = Copying(os.fsencode(checkout), os.fsencode(root))
    for name in sorted(names):
        if not name.endswith(b"/") and b".git" not in name.lower().split(b"/"):
            copying.add(name)
    return (*_notes(git, names, index), *_carry_on(theirs, entry), *copying.finish())


def _notes(git: Git, names: set[bytes], index: Path) -> list[str]:
    notes = []
    staged = git.names("ls-files", "-z", "--stage", index=index)
    if modules := [printable(line.partition(b"\t")[2]) for line in staged if line.startswith(b"160000 ")]:
        what = counted(len(modules), "submodule is", "submodules are")
        notes.append(f"{what} empty here: {some(modules)}. `git submodule update --init` fills them")
    if inner := sorted(printable(name) for name in names if name.endswith(b"/")):
        what = counted(len(inner), "repository within it is", "repositories within it are")
        notes.append(f"{what} not here: {some(inner)}")
    ignored = git.names("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory", index=index)
    if left := sorted(map(printable, ignored)):
        what = counted(len(left), "entry that git ignores is", "entries that git ignores are")
        notes.append(f"{what} not here: {some(left)}")
    return notes


def _carry_on(theirs: Path, entry: Path) -> list[str]:
    """What is under way in the source. A merge goes on here too; a rebase moves a branch that is the source's."""
    found = {what for name, what in _UNDER_WAY.items() if os.path.lexists(theirs / name)}
    notes = [f"{what} is under way in the source, and not here: the files are as they are there" for what in found]
    if not found and os.path.lexists(theirs / "MERGE_HEAD"):
        for name in _MERGE:
            if (content := _content(theirs / name)) is not None:
                (entry / name).write_bytes(content)
        notes.append("A merge is under way in the source, and goes on here by itself")
    return sorted(notes)


def _content(path: Path) -> bytes | None:
    """What is in a file of a repository; None if there is no such file."""
    try:
        return path.read_bytes() if stat.S_ISREG(os.lstat(path).st_mode) else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def _fingerprint(git: Git, root: Path) -> str:
    return fingerprint(os.fsencode(root), set(git.names(*_FILES)))


def _in_use(git: Git, made: Made, root: Path) -> str | None:
    """Why the folder cannot go: what is there and nowhere else."""
    if os.path.realpath(git.line("rev-parse", "--show-toplevel")) != str(root):
        return "it is not the worktree any more that was made"
    if os.path.realpath(root / git.line("rev-parse", "--git-common-dir")) != made.repository:
        return f"it is not a worktree of {printable(made.repository or '')} any more"
    entry = Path(git.line("rev-parse", "--absolute-git-dir"))
    if (entry / "locked").exists():
        return "it is locked (`git worktree unlock`)"
    if (entry / "modules").exists():
        return "submodules are checked out there"
    if (head := _commit(git, "HEAD")) is None:
        return "it is on a branch without a commit"
    if inner := _inner(git, root):
        return f"there are repositories within it: {some(inner)}"
    if head == made.start and _fingerprint(git, root) == made.fingerprint:
        return None
    status = git.names(
        "status", "--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=all", "--no-renames"
    )
    if status:
        what = counted(len(status), "change", "changes")
        return f"it has {what} that no commit has: {some([printable(line[3:]) for line in status])}"
    if unseen := _unseen(git, root):
        return f"git does not look for changes in some of its files (assume-unchanged, skip-worktree): {some(unseen)}"
    if any(os.path.lexists(entry / name) for name in (*_UNDER_WAY, "MERGE_HEAD")):
        return "a merge, a rebase or the like is under way there"
    return _unshared(git, head, made)


def _inner(git: Git, root: Path) -> list[str]:
    """Folders that git names and does not look into: other repositories, and submodules that are filled."""
    names = {name.rstrip(b"/") for name in git.names(*_FILES)}
    there = ((name, os.path.join(os.fsencode(root), name)) for name in sorted(names))
    return [printable(name) for name, path in there if _is_filled(path)]


def _is_filled(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and bool(os.listdir(path))


def _unseen(git: Git, root: Path) -> list[str]:
    """Files that are there, and whose changes `git status` does not tell: small letters are assumed to be unchanged."""
    flagged = [line[2:] for line in git.names("ls-files", "-z", "-v") if line[:1].islower() or line[:1] == b"S"]
    return [printable(name) for name in flagged if os.path.lexists(os.path.join(os.fsencode(root), name))]


def _unshared(git: Git, commit: str, made: Made) -> str | None:
    """Which commits would be lost: those that are on its own branch, or on none."""
    others = (f"--exclude={made.branch}", "--branches", "--tags", "--remotes")
    count = int(git.line("rev-list", "--count", commit, "--not", made.start or "", *others))
    return None if not count else f"it has {counted(count, 'commit', 'commits')} that no other branch has"
