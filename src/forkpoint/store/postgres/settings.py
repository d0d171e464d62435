"""How a store on PostgreSQL behaves. Tests: tests/postgres/test_opening.py."""

from forkpoint.store.tables.settings import SECOND, StoreSettings


class PostgresSettings(StoreSettings, frozen=True, kw_only=True):
    """How a store on PostgreSQL behaves."""

    expiry: int = 30 * SECOND  # a process that was silent for longer may lose its turns
    commit_within: float = 10.0  # seconds that a COMMIT may take, with a standby's confirmation, before it is unknown
    settle_within: float = 20.0  # seconds in which the outcome of such a commit must be found out
    listen_within: float = 2.0  # seconds in which a notification must arrive when the store is opened


DEFAULTS = PostgresSettings()
