"""Erasures that are newer than a backup: they are done again in the store that is made of it.

The file is JSON Lines: one receipt of an erasure on each line, as `erase` gave it. Tests: tests/store/test_restore.py.
"""

from pathlib import Path
from typing import Any

import msgspec

from forkpoint.errors import CopyRefused
from forkpoint.store.sqlite.connection import Database


def replay(db: Database, file: Path) -> int:
    """Does the erasures of a file again, in the transaction that is open. Returns how many there were.

    A line that is not a receipt, or that cannot be done again, raises `CopyRefused`: what was to be gone must not come
    back unnoticed.
    """
    receipts = read_receipts(file)
    if receipts:
        why = f"it names {len(receipts):,} erasures, and this version of Forkpoint has no erase to do them again with"
        raise CopyRefused(str(file), why)
    return len(receipts)


def read_receipts(file: Path) -> list[dict[str, Any]]:
    """The receipts of a file, in their order. Empty lines do not count. Raises `CopyRefused`."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise CopyRefused(str(file), error.strerror or str(error)) from error
    receipts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            receipts.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CopyRefused(str(file), f"line {number} is not a receipt of an erasure ({error})") from None
    return receipts
