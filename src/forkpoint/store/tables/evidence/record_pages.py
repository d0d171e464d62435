"""Reading records, page by page. Tests: forkpoint.testing.conformance.evidence.records."""

import msgspec

from forkpoint.errors import BadName
from forkpoint.history.records import conversation_chain, decode_birth
from forkpoint.ids import id_from_bytes
from forkpoint.paging import Page
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations import conversations
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import Record

BORN = "born"
"""The kind of a birth among records."""


def read_records(db: Database, scope: Scope, id: str, cursor: str | None, limit: int) -> Page[Record]:
    """One page of a conversation's records, the oldest first. A cursor is the number of the last one before it."""
    row = conversations.row_of(db, scope, id)
    birth = decode_birth(row["born"])
    items: list[Record] = []
    if cursor is None:
        digest = row["first_digest"].hex()
        items.append(Record(birth.follows, BORN, digest, None, birth.created, None, msgspec.json.decode(row["born"])))
    after = {"after": birth.follows if cursor is None else _number(cursor), "limit": limit + 1 - len(items)}
    own = {"tenant": scope.tenant, "chain": conversation_chain(row["id"])}
    for found in db.run("records_after", own | after):
        body = msgspec.json.decode(found["body"])
        subject = None if found["subject"] is None else id_from_bytes(found["subject"])
        said = (found["digest"].hex(), subject, body["time"], body.get("by"), body)
        items.append(Record(found["number"], found["kind"], *said))
    return Page(tuple(items[:limit]), str(items[limit - 1].number) if len(items) > limit else None)


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise BadName.bad_cursor(cursor[:200])
    return int(cursor)
