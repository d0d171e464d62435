"""Lookups: tables by which lists, exports and erasures find things. They must say what the rows say that they repeat,
else an erasure by tag misses a conversation, or leaves a copy behind. Tests: tests/store/test_verify.py."""

from collections.abc import Mapping, Sequence

from forkpoint.history.paths import Span
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.erasure.copied_events import Source
from forkpoint.store.tables.rows import Scope
from forkpoint.store.tables.verification.findings import Findings


def check_tags(db: Database, scope: Scope, findings: Findings, conversation: bytes | None) -> None:
    """Checks that conversations are found by the tags that they have, and by no others."""
    for row in db.run("tags_that_differ", {"tenant": scope.tenant, "conversation": conversation}):
        findings.found(f"conversation {id_from_bytes(row['id'])}", "lists by tag do not find it as its tags say")


def miscopied(db: Database, span: Span, found: Mapping[int, Source], erased: Sequence[int]) -> list[str]:
    """What is wrong with the table of copies in a stretch, given the copies among its events. What an erased event
    repeats can be read in the table only."""
    keys = {"first": span.segment << 32 | span.first, "last": span.segment << 32 | span.last}
    stored = {row["position"]: (row["source_turn"], row["source_step"]) for row in db.run("copies_between", keys)}
    wrong = {key for key in stored.keys() | found.keys() if stored.get(key) != found.get(key)}
    return [f"the table of copies is wrong about event {key & 0xFFFFFFFF}" for key in sorted(wrong.difference(erased))]
