"""Figures in words: tokens, cached share, price, time. Tests: tests/conversation/test_visualizer.py."""

from forkpoint.backend.results import Turn


def figures(turn: Turn, duration: float | None = None) -> str:
    """What a turn took: tokens, cached share, price, time."""
    usage, told = turn.usage, []
    if usage.input or usage.output:
        told.append(f"{usage.input:,} tokens in, {_percent(usage.cached, usage.input)} cached")
        told.append(f"{usage.output:,} out")
    else:
        told.append("no tokens reported")
    if usage.calls:
        told.append("price unknown" if turn.cost is None else dollars(turn.cost))
    if duration is not None:
        told.append(seconds(duration))
    return " · ".join(told)


def dollars(amount: float) -> str:
    """``$0``, ``$0.0012``, ``$1.20``."""
    if amount == 0:
        return "$0"
    if amount < 0.0001:
        return "under $0.0001"
    return f"${amount:,.4f}" if amount < 1 else f"${amount:,.2f}"


def seconds(duration: float) -> str:
    """``3 ms``, ``1.2 s``, ``2 min 5 s``."""
    if duration < 1:
        return f"{duration * 1000:.0f} ms"
    return f"{duration:.1f} s" if duration < 60 else f"{int(duration // 60):,} min {int(duration % 60)} s"


def _percent(part: int, whole: int) -> str:
    """A share in percent: 0 % and 100 % only if that is exact."""
    rounded = round(part * 100 / whole) if whole else 0
    return f"{min(max(rounded, 1), 99) if 0 < part < whole else rounded} %"
