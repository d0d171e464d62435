"""Ids that the engine makes: UUIDv7, so that they sort by the time they were made.

In Python an id is its canonical text; on disk it is its 16 bytes.
"""

import os

from forkpoint.clock import system_clock


def new_id(now: int | None = None) -> str:
    """A fresh UUIDv7 for this moment, or for ``now`` (microseconds since 1970)."""
    milliseconds = (system_clock() if now is None else now) // 1_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76  # version 7
    value = value & ~(0x3 << 62) | 0x2 << 62  # the variant of RFC 9562
    return _text(f"{value:032x}")


def id_to_bytes(id: str) -> bytes:
    """The 16 bytes that stand for an id on disk. Raises ``ValueError`` for anything but an id."""
    if len(id) == 36 and id[8] == id[13] == id[18] == id[23] == "-":
        digits = id.replace("-", "")
        raw = bytes.fromhex(digits)
        if raw.hex() == digits:
            return raw
    raise ValueError(f"{id!r} is not an id")


def id_from_bytes(raw: bytes) -> str:
    """The id that 16 bytes on disk stand for."""
    return _text(raw.hex())


def _text(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
