"""Holds: what keeps a family from deletion, erasure and retention. Each is a record in the family's chain.
Tests: forkpoint.testing.conformance.evidence.holds, tests/store/test_holds.py."""

from forkpoint.errors import Held, NotFound
from forkpoint.history import records as chained
from forkpoint.history.records import Fact, decode_fact, family_chain
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import conversations
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import Hold


def hold(db: Database, scope: Scope, conversation: str, id: str, reason: str) -> Hold:
    """Holds the family of a conversation, once for each id."""
    row = conversations.row_of(db, scope, conversation)
    if (there := _find(db, scope, row["family"], id)) is not None:
        return there
    parameters = {"tenant": scope.tenant, "family": row["family"], "id": id_to_bytes(id)}
    db.run("insert_hold", parameters | {"reason": reason, "by": scope.by, "now": scope.now})
    fact = Fact(kind="held", time=scope.now, by=scope.by, hold=chained.Hold(id, reason))
    records.tell_in(db, scope, family_chain(row["family"]), fact, subject=id_to_bytes(id))
    return Hold(id, id_from_bytes(row["family"]), reason, scope.by, scope.now)


def release(db: Database, scope: Scope, conversation: str, id: str | None) -> tuple[Hold, ...]:
    """Releases the family of a conversation from one hold, or from all of them. Raises `NotFound`."""
    family = conversations.row_of(db, scope, conversation)["family"]
    standing = holds_of(db, scope, family)
    ended = tuple(one for one in standing if id is None or one.id == id)
    if id is not None and not ended:
        raise NotFound("hold", id[:200])
    for one in ended:
        raw = id_to_bytes(one.id)
        db.run("delete_hold", {"tenant": scope.tenant, "family": family, "id": raw})
        fact = Fact(kind="released", time=scope.now, by=scope.by, hold=chained.Hold(one.id))
        records.tell_in(db, scope, family_chain(family), fact, subject=raw)
    return ended


def adopt(db: Database, scope: Scope, family: bytes, fact: Fact) -> None:
    """Holds or releases a family as a record of another store says."""
    if fact.hold is None:
        return
    parameters: dict[str, object] = {"tenant": scope.tenant, "family": family, "id": id_to_bytes(fact.hold.id)}
    if fact.kind == "held":
        db.run("insert_hold", parameters | {"reason": fact.hold.reason, "by": fact.by, "now": fact.time})
    else:
        db.run("delete_hold", parameters)


def read(db: Database, scope: Scope, conversation: str | None) -> tuple[Hold, ...]:
    """What holds the family of a conversation; all holds of the tenant if None is given."""
    if conversation is not None:
        return holds_of(db, scope, conversations.row_of(db, scope, conversation)["family"])
    return tuple(map(_hold_of, db.run("holds_of_a_tenant", {"tenant": scope.tenant})))


def holds_of(db: Database, scope: Scope, family: bytes) -> tuple[Hold, ...]:
    """What holds a family, the oldest first."""
    rows = db.run("holds_of_a_family", {"tenant": scope.tenant, "family": family})
    return tuple(map(_hold_of, rows))


def is_held(db: Database, scope: Scope, family: bytes) -> bool:
    """Whether something keeps a family from deletion, erasure and retention."""
    return bool(holds_of(db, scope, family))


def check_not_held(db: Database, scope: Scope, family: bytes, conversation: bytes | None = None) -> None:
    """Raises `Held` if a family is held. The error names ``conversation``, or the family if that is None."""
    if standing := holds_of(db, scope, family):
        said = "; ".join(f"{one.id} ({one.reason})" for one in standing[:10])
        more = f"; and {len(standing) - 10} more" if len(standing) > 10 else ""
        raise Held(id_from_bytes(conversation or family), said + more)


def flaws_in_holds(db: Database, scope: Scope, family: bytes) -> list[str]:
    """Where the holds of a family are others than its records say."""
    told: dict[str, tuple[str, str | None, int]] = {}
    of_family = {"tenant": scope.tenant, "chain": family_chain(family)}
    for row in db.run("hold_records", of_family):
        fact = decode_fact(row["body"])
        if fact.hold is not None and fact.kind == "held":
            told[fact.hold.id] = fact.hold.reason, fact.by, fact.time
        elif fact.hold is not None:
            told.pop(fact.hold.id, None)
    standing = {one.id: (one.reason, one.by, one.since) for one in holds_of(db, scope, family)}
    missing = [f"hold {id} is missing, and no record says that it was released" for id in told.keys() - standing.keys()]
    extra = [f"hold {id} is there, and no record says so" for id in standing.keys() - told.keys()]
    changed = [id for id in told if standing.get(id, told[id]) != told[id]]
    other = [f"hold {id} says something else than its record" for id in changed]
    return sorted(missing + extra + other)


def _find(db: Database, scope: Scope, family: bytes, id: str) -> Hold | None:
    return next((one for one in holds_of(db, scope, family) if one.id == id), None)


def is_standing(db: Database, scope: Scope, conversation: str, id: str) -> bool:
    """Whether the family of a conversation is held by this hold."""
    return _find(db, scope, conversations.row_of(db, scope, conversation)["family"], id) is not None


def is_released(db: Database, scope: Scope, conversation: str, id: str | None) -> bool:
    """Whether the family of a conversation is free of this hold; of all holds if None is given."""
    family = conversations.row_of(db, scope, conversation)["family"]
    return not is_held(db, scope, family) if id is None else _find(db, scope, family, id) is None


def _hold_of(row: Row) -> Hold:
    return Hold(id_from_bytes(row["id"]), id_from_bytes(row["family"]), row["reason"], row["by"], row["since"])
