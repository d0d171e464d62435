"""How a store behaves, in whichever database. Tests: tests/store/test_limits.py, test_collection.py."""

from typing import Self

from msgspec import Struct

from forkpoint.store.values import Retention, StoreLimits

SECOND = 1_000_000
HOUR = 3600 * SECOND


class StoreSettings(Struct, frozen=True, kw_only=True):
    """How a store behaves. Times are in microseconds."""

    limits: StoreLimits = StoreLimits()
    heartbeat: int = 10 * SECOND
    expiry: int = 60 * SECOND  # a process that was silent for longer may lose its turns
    keep_drafts: int = 24 * HOUR
    keep_keys: int = 7 * 24 * HOUR
    keep_tries: int = 30 * 24 * HOUR  # the content of tries that failed or were cancelled; their cost stays
    keep_responses: int = 30 * 24 * HOUR  # conversations of the Responses API that nobody named

    @classmethod
    def with_retention(cls, retention: Retention) -> Self:
        """The defaults, but for how long things are kept, and how long a process keeps its turns."""
        lease = int(retention.lease * SECOND)
        return cls(
            keep_drafts=int(retention.drafts * SECOND),
            keep_keys=int(retention.keys * SECOND),
            keep_tries=int(retention.tries * SECOND),
            keep_responses=int(retention.responses * SECOND),
            expiry=lease,
            heartbeat=lease // 6,
        )
