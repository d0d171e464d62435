"""A folder of its own for a fork: made before the fork is, and gone with the last conversation that works there.

Making and removing run in threads of their own. A cancellation waits for their end: nobody else knows of a folder that
is half made, so nobody else would clear it away. Tests: tests/conversation/test_workspaces.py.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
from anyio.lowlevel import RunVar

from forkpoint.backend.results import RemovedWorkspace
from forkpoint.backend.settings import Settings
from forkpoint.errors import BadWorkspace, CannotResume, ForkpointError
from forkpoint.events import JsonText
from forkpoint.store.protocol import Store
from forkpoint.threads.shield import finished
from forkpoint.workspace.folders import printable
from forkpoint.workspace.isolation import Kind, Made, NotMade, Removed, make, remove

_AT_ONCE = 4  # folders that are made or removed; copying more at once is no faster

_log = logging.getLogger("forkpoint")
_threads: RunVar[anyio.CapacityLimiter] = RunVar("threads for folders of forks")


@asynccontextmanager
async def made_for(
    kind: Kind, folder: str, name: str, is_used: Callable[[Made], Awaitable[bool]]
) -> AsyncIterator[Made]:
    """A folder for a fork. If anything is raised within, it is removed, unless the fork is there all the same.

    Raises `BadWorkspace`.
    """
    there: list[Made] = []

    async def making() -> None:
        there.append(await anyio.to_thread.run_sync(_make, kind, folder, name, limiter=_limiter()))

    try:
        try:
            await finished(making)
        except NotMade as error:
            raise BadWorkspace.workspace_not_made(kind, folder, str(error)) from None
        for note in there[0].notes:
            _log.info("%s: %s", printable(there[0].path), note)
        yield there[0]
    except BaseException:
        for made in there:
            await finished(partial(_unless_used, made, is_used))
        raise


async def remove_made(made: Made) -> Removed:
    """What became of removing a folder. A cancellation waits for that."""

    async def removing() -> Removed:
        return await anyio.to_thread.run_sync(remove, made, limiter=_limiter())

    return await finished(removing)


async def left_by(settings: Settings | None, store: Store) -> RemovedWorkspace | None:
    """What becomes of the folder of a conversation that was deleted; None if it was not made for a fork.

    It is removed if nobody else works there, and nothing is lost by that. Nothing is raised if it stays.
    """
    made = None if settings is None else settings.made
    if made is None:
        return None
    try:
        other = await _who_works_in(made, store)
        done = await remove_made(made) if other is None else Removed(False, f"{other} works there too")
    except ForkpointError as error:  # the conversation is gone all the same
        done = Removed(False, f"nobody can say who else works there ({error})")
    if not done.removed:
        _log.info("%s stays: %s", printable(made.root), done.why)
    return RemovedWorkspace(made.root, done.removed, done.why)


def settings_if_any(text: JsonText) -> Settings | None:
    """Settings, for whoever goes on without them if they cannot be read."""
    try:
        return Settings.from_json(text)
    except CannotResume:
        return None


def _make(kind: Kind, folder: str, name: str) -> Made:
    if not os.path.isdir(folder):
        raise NotMade("there is no such folder")
    return make(kind, folder, name)


async def _unless_used(made: Made, is_used: Callable[[Made], Awaitable[bool]]) -> None:
    if await is_used(made):
        return
    done = await anyio.to_thread.run_sync(remove, made, limiter=_limiter())
    if not done.removed:
        _log.warning("%s was made for a fork that is not there, and stays: %s", printable(made.root), done.why)


async def _who_works_in(made: Made, store: Store) -> str | None:
    """The name of a conversation that works in a folder, of whatever family; None if there is none."""
    cursor: str | None = None
    while True:
        page = await store.conversations(cursor=cursor, limit=1000)
        for one in page.items:
            settings = settings_if_any(one.settings)
            if settings is not None and settings.workspace is not None and _is_in(settings.workspace, made.root):
                return one.name
        cursor = page.next
        if cursor is None:
            return None


def _is_in(folder: str, root: str) -> bool:
    """Whether a folder is another, or is in it, however its path is written."""
    return any(f"{one}{os.sep}".startswith(f"{root}{os.sep}") for one in (folder, os.path.realpath(folder)))


def _limiter() -> anyio.CapacityLimiter:
    try:
        return _threads.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        _threads.set(limiter)
        return limiter
