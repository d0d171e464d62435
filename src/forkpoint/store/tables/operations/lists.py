"""Lists of conversations: a page is a range of an index, wherever in the list it is.

What the filters ask for decides which index finds the conversations: that of a parent or a family, of open turns, of a
tag, or else of the kinds of conversations. What that index does not know is looked at afterwards, in the rows.
Tests: forkpoint.testing.conformance.lists, tests/store/test_lists.py.
"""

from collections.abc import Callable, Sequence
from heapq import merge, nlargest
from itertools import islice
from typing import NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import Struct

from forkpoint.errors import BadName
from forkpoint.ids import id_to_bytes
from forkpoint.paging import Page
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import turn_pages
from forkpoint.store.tables.operations.conversations import key_of
from forkpoint.store.tables.rows import Parameters, Scope, conversation_of, dumps
from forkpoint.store.values import LineageKind, ListOrder, Status, StoredConversation, StoredGlance, StoredTurn, Tags

_ENOUGH = 1000  # how far conversations are counted: those with a tag, to find the rarest tag; those that are folded


class Wanted(Struct, frozen=True, kw_only=True):
    """Which conversations a list has: those for which all of this holds."""

    tags: Tags
    status: Status | None
    family: str | None
    parent: str | None
    sub_agents: bool
    sides: bool
    asides: bool
    drafts: bool

    @property
    def kinds(self) -> list[LineageKind]:
        left_out = {"sub_agent": not self.sub_agents, "side": not self.sides, "aside": not self.asides}
        return [kind for kind in get_args(LineageKind) if not left_out.get(kind)]

    def has(self, found: StoredConversation) -> bool:
        """Whether a conversation belongs to the list."""
        return (
            (self.drafts or not found.draft)
            and found.lineage.kind in self.kinds
            and self.status in (None, found.status)
            and self.family in (None, found.family)
            and dict(self.tags).items() <= dict(found.tags).items()
        )


class Place(NamedTuple):
    """A place in a list: the conversation there, and when it was last used, which is 0 in a list by creation."""

    used: int
    id: bytes


Source: TypeAlias = Callable[[Place, int], Sequence[Place]]
"""Gives the next places of a list after a place, in order: at most so many, and fewer only at the end."""

_FRONT = Place((1 << 63) - 1, b"\xff" * 17)  # before the first place of any list


def page(
    db: Database, scope: Scope, *, order: ListOrder, cursor: str | None, limit: int, wanted: Wanted
) -> Page[StoredConversation]:
    """One page of a list: the newest first, or the last used first."""
    after = _FRONT if cursor is None else _parse(cursor, order)
    source = _source(db, scope, order, wanted)
    found: list[StoredConversation] = []
    more = True
    while more and len(found) <= limit:
        places = source(after, limit + 1)
        found += filter(wanted.has, _read(db, scope, places))
        more = len(places) > limit
        after = places[-1] if places else after
    items = tuple(found[:limit])
    return Page(items, _cursor(items[-1], order) if len(found) > limit else None)


def glances(db: Database, scope: Scope, *, ids: Sequence[str]) -> dict[str, StoredGlance]:
    """What a list shows of these conversations beside their rows. Leaves out a conversation that is gone."""
    rows = db.run("read_listed", {"tenant": scope.tenant, "ids": b"".join(map(key_of, ids))})
    return {found.id: _glance(db, scope, found) for found in [conversation_of(row, scope) for row in rows]}


def _glance(db: Database, scope: Scope, found: StoredConversation) -> StoredGlance:
    counted = {"tenant": scope.tenant, "of": key_of(found.id), "limit": _ENOUGH}
    folded = db.run("count_folded", counted).fetchone()
    return StoredGlance(_first_turn(db, scope, found), int(folded["asides"]), int(folded["sides"]))


def _first_turn(db: Database, scope: Scope, found: StoredConversation) -> StoredTurn | None:
    """The first turn of a conversation: in a branch the first one since it parted, else the first of the path."""
    parted = found.lineage.at.ordinal if found.lineage.at is not None else 0
    for since, committed in ((parted, True), (parted, False), (0, True)):
        wanted = turn_pages.Wanted(since, notes=False, committed=committed)
        page = turn_pages.page(db, scope, conversation=found.id, cursor=None, limit=1, wanted=wanted)
        if page.items:
            return page.items[0]
    return None


def _source(db: Database, scope: Scope, order: ListOrder, wanted: Wanted) -> Source:
    if wanted.parent is not None:
        return _few(db, scope, order, "list_children", {"of": key_of(wanted.parent)})
    if wanted.family is not None:
        return _few(db, scope, order, "list_family", {"of": key_of(wanted.family, "family")})
    if wanted.status not in (None, "idle"):
        return _few(db, scope, order, "list_open", {"status": wanted.status, "dead": dead_holders(db, scope)})
    if wanted.tags:
        return _tagged(db, scope, order, wanted)
    statement = "list_by_creation" if order == "created" else "list_by_use"
    kinds = [{"tenant": scope.tenant, "kind": kind} for kind in wanted.kinds]

    drafts = [_few(db, scope, order, "list_drafts", {})] if wanted.drafts else []

    def next_places(after: Place, most: int) -> list[Place]:
        runs: list[Sequence[Place]] = [_places(db, statement, each, after, most) for each in kinds]
        runs += [source(after, most) for source in drafts]
        return list(islice(merge(*runs, reverse=True), most))

    return next_places


def _tagged(db: Database, scope: Scope, order: ListOrder, wanted: Wanted) -> Source:
    """The conversations that have all tags, found by the tag that the fewest have."""
    tags = dict(wanted.tags)

    def how_many(key: str) -> int:
        counted = {"tenant": scope.tenant, "tag": dumps({key: tags[key]}), "limit": _ENOUGH}
        return int(db.run("count_tagged", counted).fetchone()[0])

    rarest = min(tags, key=how_many) if len(tags) > 1 else next(iter(tags))
    parameters = {
        "tenant": scope.tenant,
        "tag": dumps({rarest: tags.pop(rarest)}),
        "tags": dumps(tags),
        "sub_agents": wanted.sub_agents,
        "sides": wanted.sides,
        "asides": wanted.asides,
        "drafts": wanted.drafts,
    }
    statement = "list_tagged_by_creation" if order == "created" else "list_tagged_by_use"
    return lambda after, most: _places(db, statement, parameters, after, most)


def _few(db: Database, scope: Scope, order: ListOrder, statement: str, which: Parameters) -> Source:
    """Conversations that an index has by creation only, and that are few: by last use they are sorted here."""
    parameters = which | {"tenant": scope.tenant}

    def by_use(after: Place, most: int) -> list[Place]:
        every = _places(db, statement, parameters, _FRONT, -1)
        return nlargest(most, (place for place in every if place < after))

    def by_creation(after: Place, most: int) -> list[Place]:
        return [Place(0, place.id) for place in _places(db, statement, parameters, after, most)]

    return by_use if order == "used" else by_creation


def dead_holders(db: Database, scope: Scope) -> str:
    """The processes that are known dead, as a JSON array of their ids in hex."""
    holders = db.run("read_holders").fetchall()
    return msgspec.json.encode(
        [row["id"].hex().upper() for row in holders if not scope.alive(row["id"], row["seen"])]
    ).decode()


def _places(db: Database, statement: str, parameters: Parameters, after: Place, most: int) -> list[Place]:
    rows = db.run(statement, parameters | {"used": after.used, "id": after.id, "limit": most})
    return [Place(*row) for row in rows]


def _read(db: Database, scope: Scope, places: Sequence[Place]) -> list[StoredConversation]:
    """The conversations at these places, in the same order."""
    ids = [place.id for place in places]
    rows = {row["id"]: row for row in db.run("read_listed", {"tenant": scope.tenant, "ids": b"".join(ids)})}
    return [conversation_of(rows[id], scope) for id in ids]


def _cursor(last: StoredConversation, order: ListOrder) -> str:
    return last.id if order == "created" else f"{last.used}:{last.id}"


def _parse(cursor: str, order: ListOrder) -> Place:
    """The place that a cursor names. Raises `BadName` unless it is a cursor of a list in this order."""
    used, colon, id = cursor.rpartition(":")
    try:
        if order == "created":
            return Place(0, id_to_bytes(cursor))
        if colon and used.isascii() and used.isdigit() and len(used) <= 18:
            return Place(int(used), id_to_bytes(id))
    except ValueError:
        pass
    raise BadName.bad_cursor(cursor[:200])
