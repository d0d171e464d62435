"""Erasures that are newer than a backup: they are done again in the store that is made of it.

The file is JSON Lines: one receipt of an erasure on each line, as `erase` gave it. Tests: tests/store/test_restore.py.
"""

from pathlib import Path

import msgspec

from forkpoint.clock import system_clock
from forkpoint.errors import CopyRefused
from forkpoint.store.actor import actor
from forkpoint.store.erasure import Receipt, decode_receipts
from forkpoint.store.sqlite.connection import Database
from forkpoint.store.tables.erasure import receipts
from forkpoint.store.tables.rows import Scope


def replay(db: Database, file: Path) -> int:
    """Does the erasures of a file again, in the transaction that is open. Returns how many were not done before.

    A line that is not a receipt raises `CopyRefused`: what was to be gone must not come back unnoticed.
    """
    done = 0
    for receipt in read_receipts(file):
        scope = Scope(receipt.tenant, system_clock(), b"", lambda holder, seen: False, actor())
        done += receipts.replay(db, scope, receipt)
    return done


def read_receipts(file: Path) -> list[Receipt]:
    """The receipts of a file, in their order. Empty lines do not count. Raises `CopyRefused`."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise CopyRefused(str(file), error.strerror or str(error)) from error
    found: list[Receipt] = []
    for number, line in enumerate(lines, start=1):
        try:
            found += decode_receipts(line.decode())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CopyRefused(str(file), f"line {number} is not a receipt of an erasure ({error})") from None
        if found and not found[-1].done:
            raise CopyRefused(str(file), f"line {number} is the preview of an erasure, which erased nothing")
    return found
