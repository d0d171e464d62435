"""Figures in words: how much, how dear, how long ago. The same in every command.
Tests: tests/cli/test_conversations.py."""

import time

from forkpoint.conversation.visualizer import dollars
from forkpoint.conversation.visualizer import seconds as seconds
from forkpoint.events import Usage

_UNITS = ((60, "s"), (60, "min"), (24, "h"), (14, "days"))


def counted(number: int, one: str, many: str | None = None) -> str:
    """``1 event``, ``1,200 events``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def tokens(usage: Usage) -> str:
    """All tokens of a usage, in and out, and which part of the prompts was found in a cache."""
    told = counted(usage.input + usage.output, "token")
    return f"{told}, {share(usage)} cached" if usage.input else told


def used(usage: Usage) -> str:
    """A usage in a line: tokens in and out, the part that was cached, calls, price."""
    if not usage:
        return "nothing"
    sent = f"{usage.input:,} tokens in ({share(usage)} cached), {usage.output:,} out"
    return f"{sent}, {counted(usage.calls, 'call')}, {money(usage.dollars)}"


def share(usage: Usage) -> str:
    """Which part of the prompt's tokens was found in a cache."""
    return percent(usage.cached / usage.input if usage.input else None)


def percent(part: float | None) -> str:
    """``62 %``. What is nearly nothing is not nothing, and nearly all is not all."""
    if part is None:
        return "-"
    rounded = round(part * 100)
    if 0 < part < 1:
        rounded = min(max(rounded, 1), 99)
    return f"{rounded} %"


def money(amount: float | None) -> str:
    """``$0.0123``; a price that nobody knows is not nothing."""
    return "price unknown" if amount is None else dollars(amount)


def ago(then: int, now: int | None = None) -> str:
    """How long ago a moment was, in microseconds since 1970: ``just now``, ``5 min ago``, then the date."""
    passed = ((time.time_ns() // 1000 if now is None else now) - then) / 1e6
    if passed < 10:  # or the clock was set back
        return "just now"
    for size, unit in _UNITS:
        if passed < size:
            return f"{int(passed)} {unit} ago".replace("1 days", "1 day")
        passed /= size
    return moment(then)[:10]


def moment(then: int) -> str:
    """A moment as a date and a time of the day, where the reader is."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then / 1e6))


def iso(then: int) -> str:
    """A moment for programs, as ISO 8601 in UTC: ``2026-11-18T04:43:16Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(then // 1_000_000))


def size(bytes: float) -> str:
    """``812 bytes``, ``1.2 MB``."""
    if bytes < 1000:
        return counted(int(bytes), "byte")
    for unit in ("kB", "MB", "GB"):
        bytes /= 1000
        if bytes < 1000 or unit == "GB":
            break
    return f"{bytes:,.1f} {unit}"
