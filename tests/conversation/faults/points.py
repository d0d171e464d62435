"""Points at which a turn can be struck, found by watching it run.

While a `Watch` is on, three kinds of moments are noticed, each with a name and how often it came before:

- **await**: a task of the turn is suspended. Every task that is made on the loop while the watch is on is driven
  through `_Watched`, so that nothing is listed by hand: whatever Forkpoint comes to await is found. The name is the
  chain of Forkpoint's functions that wait, and what the innermost of them waits for.
- **statement**: SQLite is given a statement of the store's writer, in whichever thread. The name is the statement.
- **file**: Python opens, makes, removes or locks a file of the store, as its audit events tell.

A point is named by what happens there and not by a number alone: whether a write goes through the writer's thread can
depend on how fast the disk is, and then numbers shift while names do not.
"""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from types import CodeType, FrameType
from typing import Any, Literal, TypeAlias

from msgspec import Struct

import forkpoint
from forkpoint.agent.calls import run_call

SOURCE = os.path.dirname(forkpoint.__file__)
TOOLS = {os.path.join(os.path.dirname(__file__), "scenario.py"), run_call.__code__.co_filename}

ONLY_CANCELLED = frozenset(
    {
        "Event.wait",
        "Lock.acquire",
        "Semaphore.acquire",
        "CapacityLimiter.acquire_on_behalf_of",
        "MemoryObjectReceiveStream.receive",
        "TaskGroup.__aexit__",
        "_wait",  # of asyncio.wait()
    }
)
"""What waits until it is woken: nothing but a cancellation can be raised there."""

Kind: TypeAlias = Literal["await", "statement", "file"]
Layer: TypeAlias = Literal["store", "model", "tool", "turn"]


class Point(Struct, frozen=True):
    """A moment of a turn: what happens, and how often it had happened before."""

    kind: Kind
    name: str
    nth: int
    layer: Layer = "store"  # whose await it is
    raises: bool = True  # whether an error can come out of it, and not only a cancellation

    def __str__(self) -> str:
        parts = self.name.split(" > ")
        return f"{self.kind} {' > '.join(['...'] * (len(parts) > 4) + parts[-4:])} #{self.nth}"

    def same(self, other: "Point") -> bool:
        return (self.kind, self.name, self.nth) == (other.kind, other.name, other.nth)


Strike: TypeAlias = Callable[[Point], BaseException | None]
"""What happens at a point: something is raised there, or done, or nothing at all."""


class Watch:
    """Notices the points of what runs while it is on, and strikes where it is told to."""

    def __init__(self, strike: Strike, folder: str) -> None:
        self.points: list[Point] = []
        self.root: asyncio.Task[Any] | None = None  # the first task that was made: the caller's
        self._strike = strike
        self._folder = os.path.realpath(folder)
        self._on = False
        self._made_before: Any = None  # how the loop made tasks before
        self._seen: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        global _watching, _audited
        self._made_before = loop.get_task_factory()
        loop.set_task_factory(self._make_task)
        _watching = self
        if not _audited:
            _audited = True
            sys.addaudithook(_audit)  # there is no way to take it away again
        self._on = True

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        global _watching
        self._on = False
        _watching = None
        loop.set_task_factory(self._made_before)

    def statement(self, sql: str) -> Point | None:
        """A statement is about to be executed."""
        return self._noticed("statement", " ".join(sql.split())[:90], "store")[0]

    def suspended(self, coro: Coroutine[Any, Any, Any]) -> BaseException | None:
        """A task waits. Returns what is to be raised where it does."""
        if not self._on:
            return None
        frames = [frame.f_code for frame in _chain(coro)]
        innermost = max((place for place, code in enumerate(frames) if _is_ours(code)), default=-1)
        ours = [code for code in frames if _is_ours(code)]
        below = [code.co_qualname for code in frames[innermost + 1 :]]
        layer: Layer = "turn"
        for code in ours:
            layer = _layer(code) or layer
        name = " > ".join([*(code.co_qualname for code in ours), *below[:1]])
        raises = not ONLY_CANCELLED.intersection(below)
        return self._noticed("await", name, layer, raises=raises)[1]

    def _file(self, event: str, path: str, raises: bool = True) -> None:
        if self._on and (not path or os.path.realpath(path).startswith(self._folder)):
            _, error = self._noticed("file", f"{event} {_kind_of_file(path)}".strip(), "store", raises=raises)
            if error is not None:
                raise error

    def _noticed(
        self, kind: Kind, name: str, layer: Layer, raises: bool = True
    ) -> tuple[Point | None, BaseException | None]:
        if not self._on:
            return None, None
        with self._lock:
            self._seen[kind, name] += 1
            point = Point(kind, name, self._seen[kind, name], layer, raises)
            self.points.append(point)
        return point, self._strike(point)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if not self._on:
            return asyncio.Task(coro, loop=loop, **options)
        task: asyncio.Task[Any] = asyncio.Task(_Watched(coro, self), loop=loop, **options)
        self.root = self.root or task
        return task


class _Watched(Coroutine[Any, Any, Any]):
    """A coroutine that tells each time it is suspended. To the task that drives it it is the coroutine itself."""

    def __init__(self, inner: Coroutine[Any, Any, Any], watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    def send(self, value: Any, /) -> Any:
        return self._until_it_waits(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._until_it_waits(self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("only a task drives this")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _until_it_waits(self, go_on: Callable[..., Any], *args: Any) -> Any:
        waits_for = go_on(*args)
        while (error := self._watch.suspended(self._inner)) is not None:
            if isinstance(waits_for, asyncio.Future):
                waits_for.add_done_callback(_looked_at)
            waits_for = self._inner.throw(error)
        return waits_for


def _looked_at(nobody_waits: "asyncio.Future[Any]") -> None:
    if not nobody_waits.cancelled():
        nobody_waits.exception()


def _chain(awaiting: Any) -> list[FrameType]:
    """The frames of a suspended coroutine, the innermost last."""
    frames: list[FrameType] = []
    while awaiting is not None:
        for frame, awaits in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
            if (found := getattr(awaiting, frame, None)) is not None:
                frames.append(found)
                awaiting = getattr(awaiting, awaits)
                break
        else:
            # What awaits the next item of an async generator does not say which; a context manager has it.
            awaiting = getattr(frames[-1].f_locals.get("self"), "gen", None) if frames else None
            if awaiting is None or awaiting.ag_frame is None or awaiting.ag_frame in frames:
                break
    return frames


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE) or code.co_filename in TOOLS


def _layer(code: CodeType) -> Layer | None:
    """Which layer a function is of, if that decides what can go wrong in it."""
    if code.co_filename in TOOLS:
        return "tool"
    match os.path.relpath(code.co_filename, SOURCE).split(os.sep)[0]:
        case "store":
            return "store"
        case "llm":
            return "model"
        case _:
            return None


def _kind_of_file(path: str) -> str:
    """A file by what it is for: a holder's has a random name."""
    folder, name = os.path.split(path)
    return "a holder's file" if folder.endswith("-holders") else name


_watching: Watch | None = None
_audited = False
_FILES = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "sqlite3.connect", "fcntl.flock"}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is None or event not in _FILES:
        return
    if event == "fcntl.flock":
        unlocks = bool(arguments[1] & 8)  # LOCK_UN, which cannot fail
        _watching._file("unlock" if unlocks else "lock", "", raises=not unlocks)
    elif isinstance(arguments[0], str | os.PathLike):
        _watching._file(event, os.fspath(arguments[0]))
