"""Making a store of a backup, at whichever address. Tests: tests/store/test_restore.py, tests/postgres/test_dump.py."""

import os

from forkpoint.store.postgres.address import is_postgres
from forkpoint.store.sqlite.copies.restore import restore as restore_file
from forkpoint.store.values import CopyProgress, Restored


def restore(
    backup: str | os.PathLike[str],
    place: str,
    *,
    force: bool = False,
    erasures: str | os.PathLike[str] | None = None,
    forget_erasures: bool = False,
    progress: CopyProgress | None = None,
) -> Restored:
    """Makes a store of a backup: a file at a path, or the tables of a database at its address. Blocks its thread."""
    if is_postgres(place):
        from forkpoint.store.postgres.care.restore import restore_database

        return restore_database(
            backup, place, force=force, erasures=erasures, forget_erasures=forget_erasures, progress=progress
        )
    return restore_file(
        backup, place, force=force, erasures=erasures, forget_erasures=forget_erasures, progress=progress
    )
