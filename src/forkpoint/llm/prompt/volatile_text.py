"""Finds what makes two otherwise equal texts differ: a time of day, a date, an id, a number, a path.

Such a text in instructions or in a tool's description is the most frequent reason for a prompt that is never cached.
"""

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

VolatileKind: TypeAlias = Literal["uuid", "date", "time", "path", "id", "counter", "number"]

_WORDS: dict[VolatileKind, str] = {
    "uuid": "a UUID",
    "date": "a date",
    "time": "the time of day",
    "path": "a path",
    "id": "an id",
    "counter": "a counter",
    "number": "a number",
}

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_PATTERN = re.compile(
    rf"""
    (?P<uuid>\b[0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}\b)
    |(?P<date>\b\d{{4}}-\d\d-\d\d(?=\b|T)|\b\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}\b
       |\b{_DAY}\b(?!\w)|\b\d{{1,2}}(?:st|nd|rd|th)?\ {_MONTH}(?:,?\ \d{{4}})?\b
       |\b{_MONTH}\ \d{{1,2}}(?:st|nd|rd|th)?(?:,?\ \d{{4}})?\b)
    |(?P<time>(?:\b|(?<=T))\d{{1,2}}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\ ?[AaPp]\.?[Mm]\b)?)
    |(?P<path>(?<![\w/\\])(?:[A-Za-z]:|~)?(?:[\\/][\w.@+~-]+){{2,}}[\\/]?)
    |(?P<id>\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{{8,}}\b)
    |(?P<number>\b\d+(?:[.,]\d+)*\b)
    """,
    re.VERBOSE,
)

_EPOCH = re.compile(r"[12]\d{9}(\d{3}){0,3}")  # seconds since 1970, or thousandths and so on


class VolatileSpot(Struct, frozen=True):
    """A place where two otherwise equal texts differ: what kind of thing stands there, and what it was and is."""

    kind: VolatileKind
    before: str
    now: str

    @property
    def words(self) -> str:
        """What stands there, for a sentence: "the time of day"."""
        return _WORDS[self.kind]


def volatile_spots(before: str, now: str) -> tuple[VolatileSpot, ...]:
    """Where two texts differ, if they differ only in times, dates, ids, numbers and paths; else nothing."""
    if before == now:
        return ()
    old, new = list(_PATTERN.finditer(before)), list(_PATTERN.finditer(now))
    if len(old) != len(new) or _around(before, old) != _around(now, new):
        return ()
    return tuple(_spot(one, other) for one, other in zip(old, new, strict=True) if one[0] != other[0])


def spots_in_words(spots: Iterable[VolatileSpot]) -> str:
    """What differs, each kind once: "the time of day and a UUID"."""
    kinds = list(dict.fromkeys(spot.words for spot in spots))
    return " and ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)


def _around(text: str, found: list[re.Match[str]]) -> list[str]:
    """What stands before, between and after the places that may differ."""
    ends = [0, *(match.end() for match in found)]
    starts = [*(match.start() for match in found), len(text)]
    return [text[end:start] for end, start in zip(ends, starts, strict=True)]


def _spot(before: re.Match[str], now: re.Match[str]) -> VolatileSpot:
    kinds = {before.lastgroup, now.lastgroup}
    kind: VolatileKind = "id"
    if kinds <= {"number", "id"} and before[0].isdigit() and now[0].isdigit():
        kind = "counter" if int(now[0]) > int(before[0]) else "number"
        kind = "time" if _EPOCH.fullmatch(before[0]) and _EPOCH.fullmatch(now[0]) else kind
    elif len(kinds) == 1:
        kind = now.lastgroup  # type: ignore[assignment]
    return VolatileSpot(kind, before[0], now[0])
