"""Whether others than its owner can decide what a file says. It is the rule that ssh has for its own settings.

A file counts if it belongs to this user or to root, and if nobody else can write it or put another file into its place.
A group may write if its only member is the owner of the file: many systems give each user such a group, and a umask of
002 with it. That does not hold for a file with an access control list, whose mode shows in the place of the group what
any user of the list may do at most. Windows has other rights, which are not looked at.
"""

import functools
import os
import shlex
import stat
from collections.abc import Collection
from pathlib import Path

_OTHERS, _GROUP = 0o002, 0o020
_LIST = "system.posix_acl_access"


def flaw_of(path: Path, found: os.stat_result, owners: Collection[int] = ()) -> str | None:
    """Why a file must not be believed, with the command that mends it; None if it may be.

    ``found`` is the stat of the open file. ``owners`` are users who may own it besides this user and root.
    """
    if os.name == "nt":  # pragma: no cover - rights are kept in another way there
        return None
    allowed = {0, os.geteuid(), *owners}
    real = Path(os.path.realpath(path))
    if (why := _flaw("it", real, found, allowed)) is not None:
        return why
    for folder in dict.fromkeys((Path(os.path.abspath(path)).parent, real.parent)):
        try:
            there = os.stat(folder)
        except OSError as error:
            return f"its folder {folder} cannot be looked at ({error.strerror})"
        if there.st_mode & stat.S_ISVTX and there.st_uid in allowed:
            continue  # as in /tmp: nobody can replace what belongs to somebody else
        if (why := _flaw(f"its folder {folder}", folder, there, allowed)) is not None:
            return why
    return None


def _flaw(what: str, path: Path, found: os.stat_result, allowed: Collection[int]) -> str | None:
    name = shlex.quote(str(path))
    if found.st_uid not in allowed:
        why = f"{what} belongs to user {found.st_uid}, and neither to you nor to root"
        return f"{why} (if you know what is in it: chown {os.geteuid()} {name})"
    if (who := _further_writer(path, found)) is not None:
        return f"{who} can write {what}, by its mode {stat.S_IMODE(found.st_mode):04o} (chmod go-w {name})"
    return None


def _further_writer(path: Path, found: os.stat_result) -> str | None:
    """Who else than its owner can write a file, or None."""
    if found.st_mode & _OTHERS:
        return "everybody"
    if not found.st_mode & _GROUP:
        return None
    if _has_list(path):
        return "somebody of its access control list"
    return None if _is_private(found.st_gid, found.st_uid) else f"group {found.st_gid}"


def _has_list(path: Path) -> bool:
    """Whether a file has an access control list. Only Linux says so; a file system without lists has none."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        return bool(os.getxattr(path, _LIST))
    except OSError:
        return False


@functools.lru_cache(maxsize=64)
def _is_private(group: int, owner: int) -> bool:
    """Whether a group has one member, the owner."""
    import grp
    import pwd

    try:
        named = grp.getgrgid(group).gr_mem
        members = {one.pw_uid for one in pwd.getpwall() if one.pw_gid == group}
        members |= {pwd.getpwnam(name).pw_uid for name in named}
    except KeyError:  # nobody knows who is in it
        return False
    return members == {owner}
