"""The departure from a head: what becomes of it when the conversation goes elsewhere, by a commit or by a keep.
Tests: forkpoint.testing.conformance.branches.elsewhere, keeps."""

from collections.abc import Iterable

from msgspec import Struct

from forkpoint.errors import BadArgument, CannotKeep, Stale
from forkpoint.events import JsonText, Position
from forkpoint.history.paths import common_ancestor
from forkpoint.history.records import Fact, KeptHead, conversation_chain, new_salt, salted
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import conversations, idempotency
from forkpoint.store.tables.operations.conversations import Spend, key_of
from forkpoint.store.tables.operations.history import read_path
from forkpoint.store.tables.rows import Scope, dumps, head_columns, head_of
from forkpoint.store.values import Head, IdempotencyKey, Lineage, NewFork, OpenTurn, StoredConversation


class Departure(Struct, frozen=True):
    """How a conversation leaves its head for another one."""

    parting: Position | None  # where the two paths part
    own: Spend  # what of the new path's cost is the conversation's own
    left: Spend | None  # what goes with the branch that keeps the old head; None if the new path has the old head


def departure_of(db: Database, scope: Scope, row: Row, there: Head) -> Departure:
    """How a conversation would leave its head for ``there``. Reads segments, and no events."""
    old, own = head_of(row), conversations.spend_of(row)
    new = Spend(there.ordinal, there.totals)
    here_path, there_path = (read_path(db, scope, row["family"], end.position) for end in (old, there))
    parting = common_ancestor(here_path, there_path)
    if there.position == old.position:
        return Departure(parting, own, None)
    if parting == old.position:
        # The new path goes on from the old head, through what other branches have spent. What this one has spent before
        # stays its own: no other branch would count it.
        return Departure(parting, Spend(new.own_from, own.inherited + (new.inherited - old.totals)), None)
    # Back on its own path it is a rewind. On another branch's, all that this conversation has spent goes with the old
    # head: of the new path, nothing is its own.
    left, kept = own.parted(new) if parting == there.position else (own, new)
    return Departure(parting, kept, left)


def leave_head(db: Database, scope: Scope, turn: OpenTurn, aside: NewFork | None) -> tuple[Spend, str | None]:
    """Makes a branch of the head that a turn's commit is about to leave, unless the new path has it.

    Returns what of the new path's cost is not the conversation's own, and the branch's id or None.
    """
    row = conversations.row_of(db, scope, turn.conversation)
    found = departure_of(db, scope, row, turn.base)
    if found.left is None:
        return found.own, None
    if aside is None:
        why = "the turn stood elsewhere than at the head, and what stands there has to be kept under a branch"
        raise BadArgument("commit", "aside=None", why)
    lineage = Lineage("aside", turn.conversation, found.parting)
    return found.own, conversations.insert_branch(db, scope, row, aside, head_of(row), lineage, found.left).id


def keep(
    db: Database,
    scope: Scope,
    id: str,
    branch: str,
    aside: NewFork,
    *,
    settings: JsonText | None,
    cache: JsonText | None,
    if_unchanged: Iterable[StoredConversation],
    key: IdempotencyKey | None,
) -> tuple[StoredConversation, StoredConversation | None]:
    """Moves a head to the head of a branch, and makes a branch of the old head."""
    if idempotency.find(db, scope, key, "keep", key_of(id)) is not None:
        return conversations.read(db, scope, id), kept_before(db, scope, id, key)
    row = conversations.row_of(db, scope, id, drafts=False)
    other = conversations.row_of(db, scope, branch)
    _check_unchanged(db, scope, if_unchanged)
    conversations.check_free(row, scope)
    _check_can_keep(row, other)
    old, there = head_of(row), head_of(other)
    settings = row["settings"] if settings is None else settings
    cache = row["cache"] if cache is None else cache
    found = departure_of(db, scope, row, there)
    is_other_agent = settings != row["settings"]
    branched: StoredConversation | None = None
    if found.left is not None or is_other_agent:
        # The new path may have the old head. Even so, nothing else has the old settings.
        left = found.left or Spend(old.ordinal, old.totals)
        lineage = Lineage("aside", id, found.parting)
        branched = conversations.insert_branch(db, scope, row, aside, old, lineage, left)
    idempotency.take(db, scope, key, "keep", key_of(id), id if branched is None else branched.id)
    if there.position == old.position and not is_other_agent:
        return conversations.read(db, scope, id), None
    parameters = head_columns(there) | {
        "tenant": scope.tenant,
        "id": row["id"],
        "own_from": found.own.own_from,
        "inherited": dumps(found.own.inherited),
        "settings": settings,
        "cache": cache,
        "revision": row["revision"],
        "now": scope.now,
    }
    db.run("keep_head", parameters)
    salt = new_salt()
    fact = Fact(
        kind="kept",
        time=scope.now,
        by=scope.by,
        head=records.point_of(there),
        totals=there.totals,
        revision=row["revision"] + 1,
        own_from=found.own.own_from,
        inherited=found.own.inherited,
        settings=salted(salt, settings),
        cache=salted(salt, cache),
        aside=None if branched is None else branched.id,
        kept=KeptHead(id_from_bytes(other["id"]), records.point_of(old)),
    )
    records.tell(db, scope, row["id"], fact, salt=salt)
    return conversations.read(db, scope, id), branched


def kept_before(db: Database, scope: Scope, id: str, key: IdempotencyKey | None) -> StoredConversation | None:
    """The branch that an earlier keep with this key has set aside; None if it set none aside, or if that is deleted."""
    target = idempotency.find(db, scope, key, "keep", key_of(id))
    if target is None or target == key_of(id) or not conversations.exists(db, scope, id_from_bytes(target)):
        return None
    return conversations.read(db, scope, id_from_bytes(target))


class KeepMark(Struct, frozen=True):
    """How a conversation's records stand after a keep: whether it landed can be seen by that."""

    number: int
    digest: bytes


def mark_of(db: Database, scope: Scope, id: str) -> KeepMark:
    row = conversations.row_of(db, scope, id)
    return KeepMark(row["records"], row["record_digest"])


def is_there(db: Database, scope: Scope, id: str, mark: KeepMark | None) -> bool:
    """Whether the record that a conversation ended with at ``mark`` is in the store."""
    if mark is None:
        return False
    at = {"tenant": scope.tenant, "chain": conversation_chain(key_of(id)), "number": mark.number}
    row = db.run("digest_of_record", at).fetchone()
    return row is not None and bool(row["digest"] == mark.digest)


def _check_unchanged(db: Database, scope: Scope, expected: Iterable[StoredConversation]) -> None:
    """Raises `Stale` if a conversation is not as its caller read it: what comes with a keep was made of that."""
    for one in expected:
        found = conversations.read(db, scope, one.id)
        if (found.revision, found.settings, found.cache) != (one.revision, one.settings, one.cache):
            raise Stale(one.id, one.revision, found.revision)


def _check_can_keep(row: Row, other: Row) -> None:
    """Raises `CannotKeep` for a branch whose head a conversation cannot have."""
    id, branch = id_from_bytes(row["id"]), id_from_bytes(other["id"])
    if id == branch:
        raise CannotKeep.keeps_itself(id)
    if other["family"] != row["family"]:
        raise CannotKeep(id, branch, "it is not of the same family")
    if other["lineage_kind"] == "sub_agent":
        raise CannotKeep(id, branch, "it is a sub-agent, which answers its parent. A fork of it can be kept")
    if other["draft"]:
        raise CannotKeep.branch_not_ready(id, branch, "it is a draft, in which no turn has committed")
    if calls := head_of(other).open_calls.client:
        why = f"it waits for results of the client's own tools ({', '.join(calls[:10])})"
        raise CannotKeep.branch_not_ready(id, branch, why)
