"""A backup: a copy of a whole store, all tenants, taken while others write.

The copy is written under another name beside the file that was asked for, brought to the disk, checked, and renamed. So
a file with the name of the backup is a whole and sound one, whatever happens meanwhile.
Tests: tests/store/test_backup.py.
"""

import os
from functools import partial
from pathlib import Path

import anyio.from_thread
import anyio.to_thread
from msgspec.structs import replace

from forkpoint.errors import CopyRefused, NotFound
from forkpoint.store.copy_file import new_copy, put_in_place
from forkpoint.store.sqlite.connection import MEMORY, Database
from forkpoint.store.sqlite.copies.page_copy import check_copy, copy_pages
from forkpoint.store.sqlite.tenant_view import TenantView
from forkpoint.store.tables.seals import sealing
from forkpoint.store.values import Backup, CopyProgress, CopyStep


async def back_up(
    view: TenantView, path: str | os.PathLike[str], *, force: bool = False, progress: CopyProgress | None = None
) -> Backup:
    """Copies the store to a file, and checks the copy. ``progress`` is called from another thread.

    All that is recorded is sealed before, so that the copy has the seal which the backup's anchor names. A store that
    is open for reading only cannot be sealed: its backup has no anchor.
    """
    source = view.opened.path

    def tell(step: CopyStep) -> None:
        anyio.from_thread.check_cancelled()  # between two steps a backup can be given up
        if progress is not None:
            progress(step)

    def copy_to(copy: Path, db: Database) -> int:
        copy_pages(db, copy, tell)
        return view.opened.clock()

    try:
        target = await anyio.to_thread.run_sync(partial(_target, source, path, force=force))
        anchor = await sealing.anchor(view, all_tenants=True) if view.opened.is_open else None
        with new_copy(target) as copy:
            taken = await view.read(lambda db, scope: copy_to(copy, db))
            made = await anyio.to_thread.run_sync(partial(_finish, copy, source, target, taken, tell, force=force))
            return replace(made, anchor=anchor)
    except OSError as error:
        raise CopyRefused(os.fspath(path), error.strerror or str(error)) from error


def _target(source: str, path: str | os.PathLike[str], *, force: bool) -> Path:
    """The file that the backup is to be. Refuses a name that a backup must not have."""
    target = Path(os.path.abspath(path))
    if source != MEMORY and not os.path.exists(source):
        raise NotFound("store", source)
    if not target.parent.is_dir():
        raise CopyRefused(str(target), f"there is no folder {str(target.parent)!r}; make it first")
    if target.is_dir():
        raise CopyRefused(str(target), "it is a folder")
    beside = {f"{source}{end}" for end in ("", "-wal", "-shm", "-write", "-journal")}
    if os.path.realpath(target) in beside or (target.exists() and source != MEMORY and target.samefile(source)):
        raise CopyRefused(str(target), "it belongs to the store itself")
    if Path(f"{target}-wal").exists():
        raise CopyRefused(str(target), f"a log stands beside it ({target.name}-wal), so it is a store in use")
    if os.path.lexists(target) and not force:
        raise CopyRefused.file_exists(str(target))
    return target


def _finish(copy: Path, source: str, target: Path, taken: int, tell: CopyProgress, *, force: bool) -> Backup:
    size = copy.stat().st_size
    tell(CopyStep("checking", 0, size))
    contents = check_copy(copy, source)
    tell(CopyStep("checking", size, size))
    put_in_place(copy, target, force=force)
    return Backup(str(target), size, contents.conversations, contents.events, contents.format, taken)
