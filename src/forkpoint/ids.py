"""Ids that the engine makes: UUIDv7, so that they sort by the time they were made.

In Python an id is its canonical text; on disk it is its 16 bytes.
"""

import hashlib
import os
from functools import lru_cache

from forkpoint.clock import system_clock


def new_id(now: int | None = None) -> str:
    """A fresh UUIDv7 for this moment, or for ``now`` (microseconds since 1970)."""
    milliseconds, microseconds = divmod(system_clock() if now is None else now, 1_000)
    fraction = microseconds * 4096 // 1_000  # 12 bits below the millisecond, so that ids sort within one as well
    random = int.from_bytes(os.urandom(8), "big") >> 2
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | fraction << 64 | 0x2 << 62 | random
    return _text(f"{value:032x}")


def id_beside(id: str, what: str) -> str:
    """An id that is made of another id and a text: the same for the same two. It sorts beside the other id."""
    random = int.from_bytes(hashlib.sha256(f"{id} {what}".encode(errors="surrogatepass")).digest()[:10], "big")
    value = int.from_bytes(id_to_bytes(id)[:6], "big") << 80 | 0x7 << 76 | 0x2 << 62
    return _text(f"{value | random >> 68 << 64 | random & (1 << 62) - 1:032x}")


@lru_cache(maxsize=4096)
def id_to_bytes(id: str) -> bytes:
    """The 16 bytes that stand for an id on disk. Raises ``ValueError`` for anything but an id."""
    if len(id) == 36 and id[8] == id[13] == id[18] == id[23] == "-":
        digits = id.replace("-", "")
        raw = bytes.fromhex(digits)
        if len(raw) == 16 and raw.hex() == digits:
            return raw
    raise ValueError(f"{id!r} is not an id")


@lru_cache(maxsize=4096)
def id_from_bytes(raw: bytes) -> str:
    """The id that 16 bytes on disk stand for."""
    return _text(raw.hex())


def _text(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
