"""Operations on conversations: each a function of its inputs, run inside a transaction.
Tests: forkpoint.testing.conformance.conversations, branches.forks, branches.sub_agents."""

from collections.abc import Collection
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import AlreadyExists, BadName, BadPosition, Busy, NotFound, Stale, TurnOpen
from forkpoint.events import JsonText, Position, Usage
from forkpoint.history.digests import root_digest
from forkpoint.history.paths import common_ancestor
from forkpoint.history.records import Fact, new_salt, salted
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.paging import Page
from forkpoint.store.tables.budgets import limits
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.operations import idempotency
from forkpoint.store.tables.operations.history import head_at, read_path, resolve
from forkpoint.store.tables.rows import (
    Parameters,
    Scope,
    blob,
    conversation_of,
    dumps,
    head_columns,
    head_of,
    held_by,
    load_usage,
    pack,
    possible_revision,
)
from forkpoint.store.values import (
    Head,
    IdempotencyKey,
    Lineage,
    NewConversation,
    NewFork,
    Onto,
    StoredConversation,
    Tags,
)

NO_APPROVALS: JsonText = "[]"
"""The standing approvals of a conversation that nobody forked: a sub-agent has none of its parent's."""

_UNUSED: Parameters = {"revision": 0, "open_turn": None, "turn_outcome": None, "turn_holder": None, "holder_seen": None}
"""The other columns of a conversation that was just made."""

MINUTE = 60_000_000
"""How long the time of a conversation's last use may stay behind, in microseconds."""


class Spend(Struct, frozen=True):
    """From which ordinal on a path's cost is a branch's own, and what the path had cost up to there."""

    own_from: int = 0
    inherited: Usage = Usage()

    def parted(self, here: "Spend") -> tuple["Spend", "Spend"]:
        """Divides the spend at a place on the path: the part of a branch that takes all after it, and the rest.

        Each stretch of history is the spend of one branch: what was spent after the place moves to the branch, except
        what this conversation had itself inherited.
        """
        return (self, here) if here.own_from < self.own_from else (here, self)


def key_of(id: str, what: str = "conversation") -> bytes:
    """The bytes of an id from a caller. Raises `NotFound` if it is malformed: then it names nothing."""
    try:
        return id_to_bytes(id)
    except ValueError:
        raise NotFound(what, id if len(id) <= 200 else id[:200] + "...") from None


def use(db: Database, scope: Scope, row: Row) -> None:
    """Moves a conversation to the front of lists by last use, unless it moved less than a minute ago."""
    if scope.now - row["used"] >= MINUTE:
        db.run("use_conversation", {"tenant": scope.tenant, "id": row["id"], "now": scope.now})


def row_of(db: Database, scope: Scope, id: str, *, drafts: bool = True) -> Row:
    """A conversation's row. Raises `NotFound`, also for a draft if ``drafts`` is False."""
    row = _row_or_none(db, scope, id)
    if row is None or (row["draft"] and not drafts):
        raise NotFound("conversation", id)
    return row


def read(db: Database, scope: Scope, id: str) -> StoredConversation:
    return conversation_of(row_of(db, scope, id), scope)


def find(db: Database, scope: Scope, name: str) -> StoredConversation:
    row = db.run("find_conversation", {"tenant": scope.tenant, "name": name}).fetchone()
    if row is None:
        raise NotFound("conversation", name if len(name) <= 200 else name[:200] + "...")
    return read(db, scope, id_from_bytes(row["id"]))


def revisions(db: Database, scope: Scope, ids: Collection[str]) -> dict[str, int]:
    """The revisions of the conversations that exist. Malformed ids are left out."""
    wanted: dict[str, bytes] = {}
    for id in ids:
        with suppress(ValueError):
            wanted[id] = id_to_bytes(id)
    rows = db.run("read_revisions", {"tenant": scope.tenant, "ids": b"".join(wanted.values())})
    asked = tuple(wanted)
    return {asked[number]: revision for number, revision in rows}


def families(db: Database, scope: Scope, *, cursor: str | None, limit: int) -> Page[str]:
    """One page of the tenant's families, the oldest first."""
    parameters = {"tenant": scope.tenant, "after": b"" if cursor is None else _cursor(cursor), "limit": limit + 1}
    found = [id_from_bytes(row["family"]) for row in db.run("families_of_a_tenant", parameters)]
    return Page(tuple(found[:limit]), found[limit - 1] if len(found) > limit else None)


def create(
    db: Database, scope: Scope, new: NewConversation, *, draft: bool, key: IdempotencyKey | None = None
) -> StoredConversation:
    """Makes a root, a branch or a draft: empty, or with a path that begins where ``new.onto`` says."""
    family = key_of(new.family or new.id, "family")
    lineage, own = new.lineage, Spend()
    if new.onto is not None:
        head = _onto(db, scope, family, new.onto)
        own = Spend(head.ordinal, head.totals)
        if lineage.at is None and lineage.source == new.onto.branch:
            lineage = replace(lineage, at=head.position)
    else:
        head = Head(None, root_digest(family))
        if new.family is not None and not db.run("branches", {"tenant": scope.tenant, "family": family}).fetchone():
            raise NotFound("family", new.family)
    if lineage.kind == "aside":
        lineage = replace(lineage, at=_parting(db, scope, lineage, head))
    made = _insert(
        db,
        scope,
        id=new.id,
        name=new.name,
        family=family,
        head=head,
        settings=new.settings,
        cache=new.cache,
        approvals=NO_APPROVALS,
        lineage=lineage,
        own=own,
        carries_metrics=False,
        title=new.title,
        tags=new.tags,
        draft=draft,
    )
    apart = lineage.kind == "sub_agent"
    limits.begin(db, scope, family, "conversation", key_of(new.id), new.budget, apart=apart)
    limits.begin(db, scope, family, "family", family, new.family_budget)
    idempotency.take(db, scope, key, "create", None, new.id)
    return made


def made_before(
    db: Database, scope: Scope, new: NewConversation, key: IdempotencyKey | None = None
) -> StoredConversation | None:
    """The conversation that an earlier request with this key made, or for the same call of a turn; else None."""
    if made := idempotency.find(db, scope, key, "create", None):
        return read(db, scope, id_from_bytes(made))
    if new.lineage.call is not None and (child := _child_of(db, scope, new.lineage)):
        return read(db, scope, id_from_bytes(child))  # a call spawns once: a resumed turn finds its child
    return None


def describe(
    db: Database,
    scope: Scope,
    id: str,
    title: str | None,
    tags: Tags | None,
    name: str | None,
    if_unchanged: StoredConversation | None,
) -> StoredConversation:
    if if_unchanged is not None:  # compared in the transaction that writes
        found = read(db, scope, id)
        if _description(found) != _description(if_unchanged):
            raise Stale(id, if_unchanged.revision, found.revision)
    if name is not None and not is_named(db, scope, id, name):
        rename(db, scope, id, name)
    if name is not None and title is None and tags is None:
        return read(db, scope, id)
    parameters = {
        "tenant": scope.tenant,
        "id": key_of(id),
        "title": title,
        "tags": None if tags is None else dumps(dict(tags)),
        "now": scope.now,
    }
    db.run("describe_conversation", parameters)
    described = read(db, scope, id)
    salt = new_salt()
    fact = Fact(
        kind="described",
        time=scope.now,
        by=scope.by,
        title=None if title is None else salted(salt, title),
        tags=None if tags is None else salted(salt, dumps(dict(tags))),
    )
    records.tell(db, scope, key_of(id), fact, salt=salt)
    return described


def _description(record: StoredConversation) -> tuple[int, str, str | None, dict[str, str]]:
    return record.revision, record.name, record.title, dict(record.tags)


def approvals(db: Database, scope: Scope, id: str) -> JsonText:
    """The standing approvals of a conversation."""
    row = db.run("read_approvals", {"tenant": scope.tenant, "id": key_of(id)}).fetchone()
    if row is None:
        raise NotFound("conversation", id)
    return str(row["approvals"])


def change_approvals(db: Database, scope: Scope, id: str, approvals: JsonText, before: JsonText) -> bool:
    parameters = {"tenant": scope.tenant, "id": key_of(id), "approvals": approvals, "before": before, "now": scope.now}
    if db.run("change_approvals", parameters).rowcount:
        salt = new_salt()
        fact = Fact(kind="approvals", time=scope.now, by=scope.by, approvals=salted(salt, approvals))
        records.tell(db, scope, key_of(id), fact, salt=salt)
        return True
    row_of(db, scope, id)  # raises if there is no such conversation
    return False


def rename(db: Database, scope: Scope, id: str, name: str | None, if_revision: int | None = None) -> StoredConversation:
    parameters = {
        "tenant": scope.tenant,
        "id": key_of(id),
        "name": name or id,
        "revision": possible_revision(if_revision),
        "now": scope.now,
    }
    try:
        found = db.run("rename_conversation", parameters).rowcount
    except Exception as error:
        if db.is_duplicate(error):
            raise AlreadyExists("conversation", name or id) from None
        raise
    if not found:
        row = row_of(db, scope, id)
        check_revision(row, if_revision)
        check_free(row, scope)
    renamed = read(db, scope, id)
    salt = new_salt()
    moved = None if if_revision is None else renamed.revision
    fact = Fact(kind="renamed", time=scope.now, by=scope.by, name=salted(salt, renamed.name), revision=moved)
    records.tell(db, scope, key_of(id), fact, salt=salt)
    return renamed


def admit(db: Database, scope: Scope, id: str) -> StoredConversation:
    """Makes a draft a conversation that is listed."""
    if db.run("admit_conversation", {"tenant": scope.tenant, "id": key_of(id), "now": scope.now}).rowcount:
        fact = Fact(kind="admitted", time=scope.now, by=scope.by, draft=False)
        records.tell(db, scope, key_of(id), fact)
    return read(db, scope, id)


def fork(
    db: Database,
    scope: Scope,
    source: str,
    new: NewFork,
    *,
    at: str | Position | None,
    before: str | Position | None,
    if_revision: int | None,
    key: IdempotencyKey | None,
    draft: bool,
    is_answered: bool = False,
) -> StoredConversation:
    """A new pointer into the source's path: one row.

    ``is_answered``: calls may be open there, and a note that follows in the same transaction answers them.
    """
    row = row_of(db, scope, source, drafts=False)
    check_revision(row, if_revision)
    head = resolve(db, scope, row["family"], head_of(row), at, before, is_answered=is_answered)
    lineage = Lineage("fork", source, head.position)
    fork = insert_branch(db, scope, row, new, head, lineage, Spend(head.ordinal, head.totals), draft=draft)
    limits.begin(db, scope, row["family"], "conversation", key_of(new.id), new.budget, apart=True)
    idempotency.take(db, scope, key, "fork", key_of(source), new.id)
    return fork


def forked_before(db: Database, scope: Scope, source: str, key: IdempotencyKey | None) -> StoredConversation | None:
    """The fork that an earlier request with this key made; None if the key is free."""
    made = idempotency.find(db, scope, key, "fork", key_of(source))
    return None if made is None else read(db, scope, id_from_bytes(made))


def rewind(
    db: Database,
    scope: Scope,
    id: str,
    aside: NewFork,
    *,
    at: str | Position | None,
    before: str | Position | None,
    if_revision: int | None,
    key: IdempotencyKey | None,
) -> tuple[StoredConversation, StoredConversation | None]:
    """Moves the head back and makes a branch of the old head. The key is free: `rewound_before` has looked."""
    row = row_of(db, scope, id, drafts=False)
    check_revision(row, if_revision)
    check_free(row, scope)
    old = head_of(row)
    if at is None and before is None:
        raise BadPosition("None", "say where to with at= or before=", use="any earlier turn or event")
    head = resolve(db, scope, row["family"], old, at, before)
    idempotency.take(db, scope, key, "rewind", key_of(id), aside.id)
    if head.position == old.position:
        return read(db, scope, id), None
    aside_own, kept = spend_of(row).parted(Spend(head.ordinal, head.totals))
    branched = insert_branch(db, scope, row, aside, old, Lineage("aside", id, head.position), aside_own)
    parameters = head_columns(head) | {
        "tenant": scope.tenant,
        "id": row["id"],
        "own_from": kept.own_from,
        "inherited": dumps(kept.inherited),
        "revision": row["revision"],
        "now": scope.now,
    }
    db.run("rewind_head", parameters)
    fact = Fact(
        kind="rewound",
        time=scope.now,
        by=scope.by,
        head=records.point_of(head),
        totals=head.totals,
        revision=row["revision"] + 1,
        own_from=kept.own_from,
        inherited=kept.inherited,
        aside=aside.id,
    )
    records.tell(db, scope, row["id"], fact)
    return read(db, scope, id), branched


def rewound_before(
    db: Database, scope: Scope, id: str, key: IdempotencyKey | None
) -> tuple[StoredConversation, StoredConversation | None] | None:
    """What an earlier rewind with this key came to; None if the key is free."""
    if (made := idempotency.find(db, scope, key, "rewind", key_of(id))) is None:
        return None
    branch = id_from_bytes(made)
    return read(db, scope, id), read(db, scope, branch) if exists(db, scope, branch) else None


def insert_branch(
    db: Database,
    scope: Scope,
    source: Row,
    new: NewFork,
    head: Head,
    lineage: Lineage,
    own: Spend,
    *,
    draft: bool = False,
) -> StoredConversation:
    """A new conversation of a family, at a place in its history."""
    return _insert(
        db,
        scope,
        id=new.id,
        name=new.name,
        family=source["family"],
        head=head,
        settings=source["settings"] if new.settings is None else new.settings,
        cache=new.cache,
        approvals=source["approvals"],
        lineage=lineage,
        own=own,
        carries_metrics=new.carries_metrics,
        title=new.title,
        tags=new.tags,
        draft=draft,
        source=source,
    )


def spend_of(row: Row) -> Spend:
    return Spend(row["own_from"], load_usage(row["inherited"]))


def exists(db: Database, scope: Scope, id: str) -> bool:
    return _row_or_none(db, scope, id) is not None


def is_admitted(db: Database, scope: Scope, id: str) -> bool:
    """Whether a conversation exists and is not a draft."""
    row = _row_or_none(db, scope, id)
    return row is not None and not row["draft"]


def is_named(db: Database, scope: Scope, id: str, name: str | None) -> bool:
    row = _row_or_none(db, scope, id)
    return row is not None and bool(row["name"] == (name or id))


def has_approvals(db: Database, scope: Scope, id: str, approvals: JsonText) -> bool:
    row = _row_or_none(db, scope, id)
    return row is not None and bool(row["approvals"] == approvals)


def was_updated(db: Database, scope: Scope, id: str) -> bool:
    """Whether the last change to a conversation is the one made in this scope."""
    row = _row_or_none(db, scope, id)
    return row is not None and bool(row["updated"] == scope.now)


def check_revision(row: Row, expected: int | None) -> None:
    """Raises `Stale` if the conversation is not at the revision that the caller decided on."""
    if expected is not None and row["revision"] != expected:
        raise Stale(id_from_bytes(row["id"]), expected, row["revision"])


def check_free(row: Row, scope: Scope) -> None:
    """Raises `Busy` or `TurnOpen` if a turn holds the conversation."""
    if row["open_turn"] is None:
        return
    id, turn = id_from_bytes(row["id"]), id_from_bytes(row["open_turn"])
    if row["turn_outcome"] == "awaiting_approval":
        raise TurnOpen(id, turn, "awaiting_approval")
    if not scope.alive(row["turn_holder"], row["holder_seen"]):
        raise TurnOpen(id, turn, "interrupted")
    raise busy(row)


def busy(row: Row) -> Busy:
    """The error for whoever has to leave a conversation alone, since a process runs its open turn."""
    by = held_by(row, row["turn_started"])
    return Busy(id_from_bytes(row["id"]), id_from_bytes(row["open_turn"]), by.host, by.process, by.since)


def _row_or_none(db: Database, scope: Scope, id: str) -> Row | None:
    row: Row | None
    row = db.run("read_conversation", {"tenant": scope.tenant, "id": key_of(id)}).fetchone()
    return row


def _onto(db: Database, scope: Scope, family: bytes, onto: Onto) -> Head:
    """The head with which a new conversation of a family begins."""
    row = row_of(db, scope, onto.branch, drafts=False)
    if row["family"] != family:
        raise NotFound("conversation", onto.branch)
    here = head_of(row)
    if onto.position == here.position:
        return here
    if onto.position is None or _stands_at(db, scope, row["open_turn"], onto.position):
        return head_at(db, family, onto.position)
    return resolve(db, scope, family, here, onto.position, None)


def _parting(db: Database, scope: Scope, lineage: Lineage, head: Head) -> Position | None:
    """Where the path to a head parts from that of the conversation that a branch is set aside from."""
    assert lineage.source is not None, "checked before"
    source = row_of(db, scope, lineage.source)
    paths = (read_path(db, scope, source["family"], end.position) for end in (head_of(source), head))
    return common_ancestor(*paths)


def _stands_at(db: Database, scope: Scope, open_turn: bytes | None, position: Position) -> bool:
    """Whether an open turn stands at a position, on its conversation's path or, for now, elsewhere.

    Its sub-agents may begin there, whatever has become of the branch on which it stands.
    """
    if open_turn is None:
        return False
    turn = db.run("read_turn", {"tenant": scope.tenant, "id": open_turn}).fetchone()
    return turn is not None and bool(turn["base"] == pack(position))


def _child_of(db: Database, scope: Scope, lineage: Lineage) -> bytes | None:
    parameters = {"tenant": scope.tenant, "turn": blob(lineage.turn), "call": lineage.call}
    row = db.run("find_child", parameters).fetchone()
    return None if row is None else row["id"]


def _insert(
    db: Database,
    scope: Scope,
    *,
    id: str,
    name: str | None,
    family: bytes,
    head: Head,
    settings: str,
    cache: str,
    approvals: str,
    lineage: Lineage,
    own: Spend,
    carries_metrics: bool,
    title: str | None,
    tags: Tags,
    draft: bool,
    source: Row | None = None,
) -> StoredConversation:
    """Makes a conversation's row. Its chain of records goes on from the chain of ``source``, if that is given."""
    parameters: Parameters = head_columns(head) | {
        "tenant": scope.tenant,
        "id": key_of(id),
        "name": name or id,
        "family": family,
        "settings": settings,
        "cache": cache,
        "approvals": approvals,
        "lineage_kind": lineage.kind,
        "lineage_source": blob(lineage.source),
        "lineage_at": pack(lineage.at),
        "lineage_turn": blob(lineage.turn),
        "lineage_call": lineage.call,
        "own_from": own.own_from,
        "inherited": dumps(own.inherited),
        "carries_metrics": carries_metrics,
        "title": title or None,
        "tags": dumps(dict(tags)),
        "draft": draft,
        "now": scope.now,
    }
    parameters["records"] = records.earlier(db, scope, key_of(id))
    parameters |= records.birth(db, parameters, lineage, head, source)
    try:
        db.run("insert_conversation", parameters)
    except Exception as error:
        if db.is_duplicate(error):
            raise AlreadyExists("conversation", parameters["name"]) from None
        raise
    return conversation_of(
        parameters | _UNUSED | {"created": scope.now, "updated": scope.now, "used": scope.now}, scope
    )


def _cursor(cursor: str) -> bytes:
    try:
        return id_to_bytes(cursor)
    except ValueError:
        raise BadName.bad_cursor(cursor[:200]) from None
