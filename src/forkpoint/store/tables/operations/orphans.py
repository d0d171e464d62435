"""Orphans: open turns whose process is gone. Tests: forkpoint.testing.conformance.orphans."""

from forkpoint.errors import BadName
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.paging import Page
from forkpoint.store.tables.database import Database
from forkpoint.store.tables.operations.garbage import Tenants
from forkpoint.store.tables.operations.lists import dead_holders
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import MOST_TAKEOVERS, Orphan


def page(
    db: Database, scope: Scope, cursor: str | None, limit: int, *, accepted: bool, every_tenant: bool
) -> Page[Orphan]:
    """The next orphans, in the order of their conversations: one range of an index."""
    tenants = Tenants() if every_tenant else Tenants.only(scope.tenant)
    tenant, after = ("", b"") if cursor is None else _parse(cursor)
    parameters = tenants.range | {
        "dead": dead_holders(db, scope),
        "accepted": int(accepted),
        "most": MOST_TAKEOVERS,
        "tenant_after": tenant,
        "after": after,
        "limit": limit + 1,
    }
    found = [
        Orphan(
            id=id_from_bytes(row["id"]),
            tenant=row["tenant"],
            conversation=id_from_bytes(row["conversation"]),
            accepted=bool(row["accepted"]),
            takeovers=row["takeovers"],
            is_cancel_asked=row["cancel_asked"] is not None,
        )
        for row in db.run("list_orphans", parameters)
    ]
    items = tuple(found[:limit])
    return Page(items, f"{items[-1].tenant}/{items[-1].conversation}" if len(found) > limit else None)


def _parse(cursor: str) -> tuple[str, bytes]:
    tenant, _, conversation = cursor.rpartition("/")
    try:
        return tenant, id_to_bytes(conversation)
    except ValueError:
        raise BadName.bad_cursor(cursor[:200]) from None
