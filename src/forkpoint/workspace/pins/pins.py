"""What a project would run, and what decides how strict it is: **pinned** by one digest.

Trust is of content. A user who trusts a project has approved what it runs at that moment, and nothing that comes later.
Pinned are

- all settings in ``.forkpoint/config.toml`` but ``instructions``, which is prose;
- the content of each file of the project that a command of its hooks or MCP servers names: the program, and each word
  of its arguments and environment that is such a file, but not what it only writes to (``>> log``). Links are followed.
  A file that is named and not there is pinned as missing. What such a file itself reads or runs is not looked at, nor
  is anything outside of the project.

**The digest** is ``sha256:`` and the SHA-256 of frames. A frame is the length of some bytes, as 8 bytes, the largest
first, and then the bytes. The frames are ``forkpoint-pinned-1``; for each setting, sorted by name, the three frames
``setting``, its name, and its value as JSON without blanks, in which keys are sorted; for each file, sorted by name,
the three frames ``file``, its name as a path from the project's root, and ``sha256:`` with the SHA-256 of its content,
or ``missing``, or ``unreadable``. So it is the same on every machine.
"""

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.errors import BadSetting, TrustChanged
from forkpoint.events import JsonText
from forkpoint.workspace.folders import origin_of, printable, workspaces_folder
from forkpoint.workspace.project import ProjectSettings, file_url, settings_at, settings_of
from forkpoint.workspace.roots import checkout_and_root

Command: TypeAlias = str | tuple[str, ...]
"""A text for the shell, or a program and its arguments."""

APPROVED = "FORKPOINT_TRUST_DIGEST"
"""The environment variable that names digests which count as approved."""

MISSING, UNREADABLE = "missing", "unreadable"

_FORMAT = b"forkpoint-pinned-1"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PROSE = ("instructions",)
_BREAKS = re.compile(r"(?:\$\w+|[\s;&|<>()\"'`$={},:@])+")  # a variable too: $ROOT/guard.sh may be guard.sh
_WRITTEN = re.compile(
    r"(?<![<>=-])(?:&|\b[0-9]+)?>{1,2}\|?[ \t]*(?:\"[^\"$`]*\"|'[^']*'|[^\s;&|<>()\"'`$]+)(?![\w$`\"'/])"
)
"""What a shell writes to, as in ``>> hooks.log``: the command makes that file, and does not run it."""
_LONGEST = 4096  # characters of a path
_MOST_BASES = 16  # folders in which the words of a command are looked for


class PinnedFile(Struct, frozen=True, order=True):
    """A file of a project that a command names, and ``sha256:...`` of its content, or why it has no digest.

    ``name`` is its path from the root of the project, ``path`` the file that was read.
    """

    name: str
    digest: str
    path: str


class PinnedCommand(Struct, frozen=True):
    """A command of a project, and the files of the project that it names.

    - ``name``: the moment of a hook, or the name of an MCP server.
    - ``command``: as it is run. It is empty for an MCP server that is an address.
    - ``cwd``: where it starts.
    - ``folder``: the workspace.
    """

    kind: Literal["hook", "mcp"]
    name: str
    command: Command
    env: tuple[tuple[str, str], ...]
    cwd: str
    root: str
    folder: str
    files: tuple[PinnedFile, ...] = ()

    @property
    def line(self) -> str:
        """The command as one would type it."""
        return self.command if isinstance(self.command, str) else shlex.join(self.command)

    def check(self, folder: Path | None = None) -> None:
        """Reads the files again, all of them. Raises `TrustChanged` if any is not what it was.

        ``folder`` is where a hook runs, if that is another folder than it was pinned for.
        """
        here = self if folder is None else msgspec.structs.replace(self, cwd=str(folder), folder=str(folder))
        now = _Search(Path(here.root), Path(here.folder)).files_of(here)
        if _content(now) == _content(self.files):
            return
        names = sorted({name for name, _ in _content(now) ^ _content(self.files)})
        raise trust_changed(
            self.root, self.folder, f"{', '.join(map(printable, names))} changed since the turn began", digest=None
        )


class Pinned(Struct, frozen=True):
    """What is pinned of a project, for work in one of its folders.

    ``looked_at`` are the paths that decided which files are pinned: nothing changes here unless one of them does.
    """

    root: str
    folder: str
    settings: tuple[tuple[str, JsonText], ...] = ()
    commands: tuple[PinnedCommand, ...] = ()
    looked_at: tuple[str, ...] = ()
    digest: str = ""

    @property
    def files(self) -> tuple[PinnedFile, ...]:
        """The files of all commands, each content once."""
        found = {(file.name, file.digest): file for command in self.commands for file in command.files}
        return tuple(found[key] for key in sorted(found))

    def command_of(self, kind: str, name: str, command: Command) -> PinnedCommand | None:
        """The pinned command that is run like this; None if the project has none."""
        named = (one for one in self.commands if (one.kind, one.name, one.command) == (kind, name, command))
        return next(named, None)


def pinned_at(path: str | os.PathLike[str]) -> Pinned:
    """What is pinned of the project that a folder belongs to, as it is now. Raises `BadSetting`."""
    root = checkout_and_root(origin_of(path))[1]
    return pinned_of(settings_at(root), root, path)


def pinned_of(said: ProjectSettings, root: Path, path: str | os.PathLike[str]) -> Pinned:
    """The same of settings that were read already."""
    settings = tuple(
        (name, _canonical(name, value, root))
        for name in sorted(said.__struct_fields__)
        if name not in _PROSE and (value := getattr(said, name)) is not None
    )
    folder = Path(os.path.realpath(path))
    if not settings:
        return Pinned(str(root), str(folder), digest=NOTHING)
    search = _Search(root, folder)
    commands = tuple(msgspec.structs.replace(one, files=search.files_of(one)) for one in _commands(said, root, folder))
    looked_at = tuple(sorted({str(settings_of(root)), *search.looked_at}))
    made = Pinned(str(root), str(folder), settings, commands, looked_at)
    return msgspec.structs.replace(made, digest=_digest_of(settings, made.files))


def digest_of(text: str) -> str | None:
    """The digest that a text is; None if it is not a digest."""
    return text.strip() if _DIGEST.fullmatch(text.strip()) else None


def approved_in_environment() -> frozenset[str]:
    """The digests that the environment approves. Raises `BadSetting`."""
    named = re.split(r"[\s,]+", os.environ.get(APPROVED, "").strip())
    if wrong := [one for one in named if one and digest_of(one) is None]:
        why = f"{wrong[0][:100]!r} is not a digest, as `forkpoint trust --print-digest` prints it"
        raise BadSetting.broken_settings(APPROVED, why)
    return frozenset(filter(None, named))


def is_approved(digest: str, approved: Iterable[str]) -> bool:
    """Whether content is among what was ``approved`` of its project. If nothing ever was, a project that runs nothing
    needs no approval. If something was, nothing is another content: a guard may have been taken away."""
    known = set(approved)
    return digest in known or (digest == NOTHING and not known)


def is_approved_here(digest: str, approved: Iterable[str]) -> bool:
    """The same, but the environment may approve it too. The environment may name digests of other projects: they do not
    count as something that was approved of this one. Raises `BadSetting`."""
    return is_approved(digest, approved) or digest in approved_in_environment()


def trust_changed(root: str, folder: str, what: str, digest: str | None) -> TrustChanged:
    """The error for a project that changed. ``digest`` is that of its content now; None computes it."""
    if digest is None:
        try:
            digest = pinned_at(folder).digest
        except BadSetting:
            digest = "DIGEST"
    command = f"forkpoint trust {shlex.quote(printable(folder))}"
    return TrustChanged(printable(root), what, command, digest)


def content_of(file: PinnedFile, most: int) -> bytes | None:
    """The content of a pinned file; None if that is another by now, or has more bytes than ``most``."""
    try:
        with os.fdopen(_opened(file.path), "rb") as found:
            content = found.read(most + 1)
    except (OSError, ValueError):
        return None
    return content if len(content) <= most and _hex(hashlib.sha256(content)) == file.digest else None


class _Search:
    """Finds the files of a project that commands name."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._places = _places(root, folder)
        self.looked_at: set[str] = set()

    def files_of(self, one: PinnedCommand) -> tuple[PinnedFile, ...]:
        found: dict[tuple[str, str], PinnedFile] = {}
        absent: dict[str, str] = {}
        for path, is_wanted in self._paths(one):
            self.looked_at.add(path)
            if (file := self._file(path, is_wanted)) is not None:
                found[file.name, file.digest] = file
            elif (name := self._name(path)) is not None and not os.path.lexists(path):
                absent[name] = path
        for name in absent.keys() & {name for name, _ in found}:  # a worktree from which a file was taken away
            found[name, MISSING] = PinnedFile(name, MISSING, absent[name])
        return tuple(found[key] for key in sorted(found))

    def _paths(self, one: PinnedCommand) -> Iterator[tuple[str, bool]]:
        """The paths that words of a command may mean, and whether a file is meant even if it does not exist."""
        if isinstance(one.command, str):
            program, texts = None, [one.command]
        else:
            program, texts = (one.command[0], list(one.command[1:])) if one.command else (None, [])
        if program is not None and "/" in program:
            yield os.path.normpath(os.path.join(one.cwd, program)), True
        elif program is not None:
            yield from ((path, False) for path in self._on_path(program, one))
        texts += [os.path.expandvars(text) for text in texts]  # a shell may see our variables: $HOME/project/guard.sh
        words = sorted(_words([*texts, *(value for _, value in one.env)], one.cwd))
        bases = dict.fromkeys((str(self._root), one.cwd))
        named = [os.path.normpath(os.path.join(base, word)) for word in words for base in bases]
        for folder in dict.fromkeys(filter(self._has, named)):  # as in cd FOLDER && ./guard.sh
            self.looked_at.add(folder)
            if len(bases) < _MOST_BASES:
                bases[folder] = None
        for word in words:
            for base in bases:
                path = os.path.normpath(os.path.join(base, os.path.expanduser(word)))
                is_path = "/" in word and not _BREAKS.search(word)
                is_path = is_path and (word.startswith("./") or self._has(os.path.dirname(path)))
                yield path, is_path and base == str(self._root)

    def _on_path(self, program: str, one: PinnedCommand) -> Iterator[str]:
        """Where a program without a path would be, if a folder of the project is among those that are searched."""
        ours = os.environ.get("PATH", os.defpath)
        searched = dict(one.env).get("PATH", ours).replace("${PATH}", ours)
        for folder in dict.fromkeys(searched.split(os.pathsep)):
            there = os.path.normpath(os.path.join(one.cwd, folder))
            if self._name(there) is not None:
                yield os.path.join(there, program)

    def _has(self, folder: str) -> bool:
        return self._name(folder) not in (None, ".") and os.path.isdir(folder)

    def _file(self, path: str, is_wanted: bool) -> PinnedFile | None:
        real = os.path.realpath(path)
        if (name := self._name(path) or self._name(real)) is None:
            return None
        try:
            content = _sha256(path)
        except (FileNotFoundError, NotADirectoryError):
            return PinnedFile(name, MISSING, path) if is_wanted else None
        except (OSError, ValueError):
            return PinnedFile(name, UNREADABLE, path) if is_wanted or os.path.isfile(path) else None
        return None if content is None else PinnedFile(name, content, real)

    def _name(self, path: str) -> str | None:
        """A path from the root of the project; None if it is not in the project."""
        for place in self._places:
            if path == place or path.startswith(place.rstrip("/") + "/"):
                return os.path.relpath(path, place)
        return None


def _places(root: Path, folder: Path) -> tuple[str, ...]:
    """The folders that hold the project: its root, the checkout, and what was made for a fork."""
    found = [root, checkout_and_root(origin_of(folder))[0], checkout_and_root(folder)[0]]
    home = Path(os.path.realpath(workspaces_folder()))
    if folder != home and folder.is_relative_to(home):
        found.append(home / folder.relative_to(home).parts[0])
    return tuple(dict.fromkeys(map(str, found)))


def _commands(said: ProjectSettings, root: Path, folder: Path) -> Iterator[PinnedCommand]:
    """The commands that a project's settings name, as they are run in a folder, without their files."""
    for hook in _tables(said.hooks):
        command = _command(hook.get("command"), root)
        yield PinnedCommand("hook", str(hook.get("moment")), command, (), str(folder), str(root), str(folder))
    for server in _tables(said.mcp):
        env = server.get("env")
        given = sorted((str(name), str(value)) for name, value in env.items()) if isinstance(env, Mapping) else ()
        cwd = str(server.get("cwd", "${workspace}")).replace("${workspace}", str(folder))
        yield PinnedCommand(
            "mcp",
            str(server.get("name")),
            _command(server.get("command", ()), root, workspace=str(folder)),
            tuple(given),
            os.path.normpath(root / cwd),
            str(root),
            str(folder),
        )


def _tables(said: JsonText | None) -> list[dict[str, Any]]:
    return [] if said is None else list(msgspec.json.decode(said))


def _command(given: Any, root: Path, workspace: str | None = None) -> Command:
    """A command as it is run: a program with a relative path is that of the project's root."""
    if isinstance(given, str):
        return given
    words = [str(word) for word in given] if isinstance(given, list | tuple) else []
    if words and "/" in words[0] and not words[0].startswith("${"):
        words[0] = str(root / words[0])
    return tuple(word if workspace is None else word.replace("${workspace}", workspace) for word in words)


def _words(texts: Iterable[str], cwd: str) -> set[str]:
    """What in texts may be the name of a file: each text, its words as a shell has them, and what stands between the
    characters that end a word. What begins with a slash may follow a folder, as in ``$(pwd)/guard.sh``."""
    found: set[str] = set()
    for given in texts:
        text = _WRITTEN.sub(" ", given.replace("${PWD}", cwd).replace("$PWD", cwd))
        found |= {text, *_BREAKS.split(text)}
        with suppress(ValueError):  # a quote without its end
            found |= set(shlex.split(text))
    found |= {word.lstrip("/") for word in found}
    return {word for word in found if word.strip("./") and len(word) <= _LONGEST and "\0" not in word}


def _opened(path: str) -> int:
    """An open file. What is not a file must not be waited for."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))


def _sha256(path: str) -> str | None:
    """The digest of a file's content; None if it is a folder, or anything else that is not a file."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        return None
    with os.fdopen(_opened(path), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        return _hex(hashlib.file_digest(file, "sha256"))


def _content(files: Iterable[PinnedFile]) -> set[tuple[str, str]]:
    return {(file.name, file.digest) for file in files}


def _canonical(name: str, value: str, root: Path) -> JsonText:
    """A setting's value as JSON that is the same for the same value, wherever the project is."""
    plain = msgspec.json.decode(value) if name in ("hooks", "mcp", "models", "templates") else value
    if name == "store":
        plain = value.replace(f"{file_url(root)}/", "sqlite:///", 1)
    return msgspec.json.encode(plain, order="deterministic").decode()


def _digest_of(settings: Iterable[tuple[str, JsonText]], files: Iterable[PinnedFile]) -> str:
    total = hashlib.sha256()
    frames = [_FORMAT]
    for name, value in settings:
        frames += [b"setting", name.encode(), value.encode()]
    for file in files:
        frames += [b"file", os.fsencode(file.name), file.digest.encode()]
    for frame in frames:
        total.update(len(frame).to_bytes(8, "big") + frame)
    return _hex(total)


def _hex(found: "hashlib._Hash") -> str:
    return f"sha256:{found.hexdigest()}"


NOTHING = _digest_of((), ())
"""The digest of a project that has nothing pinned."""
