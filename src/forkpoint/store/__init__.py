"""Where conversations are kept. `protocol` says what a store is; `open_store` opens one by its address."""

from forkpoint.store.address import open_store
from forkpoint.store.protocol import Store

__all__ = ["Store", "open_store"]
