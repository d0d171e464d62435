"""Where conversations are kept. Callers import the names below, and no module.

- `protocol`: what a store is. `values`: what it takes and returns. `actor`: who acts.
- `erasure`: what somebody wants to erase, and the receipt.
- `address`: opens a store by its address. `sqlite/`: the store in a file or in memory. `postgres/`: in a database.
- `tables/`: what both do in their tables. `sql/`: the statements of each.
- `checks`: what every store refuses.
"""

from forkpoint.store.address import open_store
from forkpoint.store.erasure import Receipt, Touched
from forkpoint.store.postgres.address import is_postgres
from forkpoint.store.protocol import Store
from forkpoint.store.values import (
    DEFAULT_TENANT,
    GIVEN_UP,
    Collected,
    Hold,
    Lineage,
    ListOrder,
    Orphan,
    Record,
    Retention,
    Status,
    StoredConversation,
    StoredDocument,
    StoredTurn,
    TurnError,
    Verification,
    check_name,
)

__all__ = [
    "DEFAULT_TENANT",
    "GIVEN_UP",
    "Collected",
    "Hold",
    "Lineage",
    "ListOrder",
    "Orphan",
    "Receipt",
    "Record",
    "Retention",
    "Status",
    "Store",
    "StoredConversation",
    "StoredDocument",
    "StoredTurn",
    "Touched",
    "TurnError",
    "Verification",
    "check_name",
    "is_postgres",
    "open_store",
]
