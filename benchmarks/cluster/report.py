"""What is said in the end: a report in Markdown."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from benchmarks.cluster.checker import Checked
from benchmarks.cluster.killer import Blow
from benchmarks.cluster.ledger import KINDS, Ledger

_SHOWN = 10  # findings of each kind


class Facts(Struct, frozen=True):
    """What the run was."""

    command: str
    form: str
    seconds: float
    machine: str
    size: int | None = None  # bytes of the store
    remarks: tuple[str, ...] = ()


def written(facts: Facts, ledger: Ledger, blows: Sequence[Blow], checked: Checked) -> str:
    found = Counter(finding.kind for finding in ledger.findings)
    good = not ledger.findings
    lines = [
        f"# Cluster, {facts.form}: {'nothing lost, doubled or half' if good else 'NOT GOOD'}",
        "",
        f"`{facts.command}`, {facts.seconds:.0f} s of load, {facts.machine}.",
        "",
        *_table(("found", "times"), [(kind, f"{found[kind]:,}") for kind in KINDS]),
        "",
        *_table(("looked at", ""), _looked(checked, facts, ledger)),
        "",
        *_table(("acknowledged", "times"), _counted(ledger, "acknowledged: ")),
        "",
        *_table(("killed", "times", "no client was answered for: median", "longest"), _kills(blows)),
        "",
        f"The longest time without any answer was {ledger.silence(0.0, math.inf):.1f} s.",
        "",
        *_table(("what else clients saw", "times"), _rest(ledger)),
    ]
    lines += [f"\n- {remark}" for remark in facts.remarks]
    if not good:
        lines += ["", "## Found"]
        for kind in KINDS:
            of_kind = [finding.what for finding in ledger.findings if finding.kind == kind]
            lines += [f"- **{kind}**: {what}" for what in of_kind[:_SHOWN]]
            if len(of_kind) > _SHOWN:
                lines.append(f"- **{kind}**: and {len(of_kind) - _SHOWN:,} more, in ledger.jsonl")
    return "\n".join(lines) + "\n"


def _looked(checked: Checked, facts: Facts, ledger: Ledger) -> list[tuple[str, str]]:
    rows = [
        ("conversations", f"{checked.conversations:,}"),
        ("turns in their histories", f"{checked.turns:,}"),
        ("tries in all", f"{checked.tries:,}"),
        ("calls of tools", f"{checked.tools:,}"),
        ("streams that were followed", f"{checked.streams:,}"),
        ("anchors, taken all along", f"{checked.anchors:,}"),
        ("`verify` with all anchors", checked.verified),
        ("turns a second", f"{ledger.turns / facts.seconds:.1f}"),
    ]
    if facts.size is not None:
        rows.append(("bytes of the store", f"{facts.size:,}"))
    return rows


def _kills(blows: Sequence[Blow]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind in sorted({blow.kind for blow in blows}):
        of_kind = [blow for blow in blows if blow.kind == kind]
        waits = [blow.silence for blow in of_kind if blow.silence is not None]
        times = (f"{median(waits):.1f} s", f"{max(waits):.1f} s") if waits else ("", "")
        rows.append((kind, f"{len(of_kind):,}", *times))
    return rows


def _counted(ledger: Ledger, prefix: str) -> list[tuple[str, str]]:
    found = sorted((what, times) for what, times in ledger.counts.items() if what.startswith(prefix))
    return [(what.removeprefix(prefix), f"{times:,}") for what, times in found]


def _rest(ledger: Ledger) -> list[tuple[str, str]]:
    found = sorted((what, times) for what, times in ledger.counts.items() if not what.startswith("acknowledged"))
    return [(what, f"{times:,}") for what, times in found]


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [_row(header), _row(tuple("---" for _ in header)), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
