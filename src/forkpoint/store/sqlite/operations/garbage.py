"""Garbage: what no conversation reaches any more, and what is too old to be kept.
Tests: forkpoint.testing.conformance.care, tests/store/test_failed_commit.py."""

from msgspec import Struct

from forkpoint.ids import id_from_bytes
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.operations import records
from forkpoint.store.sqlite.rows import ORDINALS, Scope, unpack
from forkpoint.store.values import Collected

BATCH = 500
"""How many events one step of the collector removes, so that no turn waits long for it."""


class Stretch(Struct, frozen=True):
    """The end of a segment that no conversation reaches: everything after an ordinal."""

    segment: int
    after: int
    whole: bool  # nothing of the segment is reached

    @property
    def keys(self) -> dict[str, int]:
        return {"first": (self.segment << 32) + self.after + 1, "last": self.segment << 32 | ORDINALS}


def families(db: Database, scope: Scope) -> list[bytes]:
    return [row["family"] for row in db.execute(SQL["families"], {"tenant": scope.tenant})]


def unreached(db: Database, scope: Scope, family: bytes) -> list[Stretch]:
    """What no conversation of a family reaches, children before their parents."""
    heads = db.execute(SQL["family_heads"], {"family": family})
    reached: dict[int, int] = {row["segment"]: row["ordinal"] for row in heads}
    stretches = []
    for row in db.execute(SQL["family_segments"], {"family": family, "tenant": scope.tenant}).fetchall():
        base = unpack(row["base"])  # always in an older segment, which comes later here
        if row["id"] not in reached:
            stretches.append(Stretch(row["id"], base.ordinal if base else 0, whole=True))
            continue
        if base is not None:
            reached[base.segment] = max(reached.get(base.segment, 0), base.ordinal)
        stretches.append(Stretch(row["id"], reached[row["id"]], whole=False))
    return stretches


def measure(db: Database, stretch: Stretch) -> Collected:
    """What collecting a stretch would remove."""
    found = db.execute(SQL["measure_events"], stretch.keys).fetchone()
    turns = db.execute(SQL["turns_in_stretch"], stretch.keys | {"after": stretch.after}).fetchone()["turns"]
    return Collected(found["events"], found["bytes"], int(stretch.whole), turns=turns)


def collect_some(db: Database, scope: Scope, family: bytes) -> tuple[Collected, bool]:
    """Removes at most a batch of what a family does not reach; says whether there is more."""
    done = Collected()
    for stretch in unreached(db, scope, family):
        left = BATCH - done.events
        rows = db.execute(SQL["last_events"], stretch.keys | {"limit": left}).fetchall()
        if rows:
            db.execute(SQL["delete_events"], {"first": rows[-1]["id"], "last": rows[0]["id"]})
            done += Collected(len(rows), sum(row["bytes"] for row in rows))
        if len(rows) == left:
            return done, True
        parameters = stretch.keys | {"after": stretch.after}
        db.execute(SQL["free_keys_of_turns"], parameters | {"tenant": scope.tenant})
        for turn in db.execute(SQL["delete_turns"], parameters).fetchall():
            records.forget_turn(db, scope, turn)
            done += Collected(turns=1)
        if stretch.whole:
            db.execute(SQL["delete_segment"], {"id": stretch.segment})
            done += Collected(segments=1)
    return done, False


def old_drafts(db: Database, scope: Scope, before: int) -> list[str]:
    """Drafts without an open turn that nobody has touched since."""
    parameters = {"tenant": scope.tenant, "before": before}
    return [id_from_bytes(row["id"]) for row in db.execute(SQL["old_drafts"], parameters)]


def count_old_keys(db: Database, scope: Scope, before: int) -> int:
    row = db.execute(SQL["count_old_keys"], {"tenant": scope.tenant, "before": before}).fetchone()
    return int(row["keys"])


def delete_old_keys(db: Database, scope: Scope, before: int) -> int:
    return db.execute(SQL["delete_old_keys"], {"tenant": scope.tenant, "before": before}).rowcount


def forget_holders(db: Database, before: int) -> None:
    db.execute(SQL["forget_holders"], {"before": before})
