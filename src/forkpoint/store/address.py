"""The address of a store: which database it names, and opening it."""

import re
from urllib.parse import unquote

from forkpoint.errors import BadStoreUrl
from forkpoint.store.protocol import Store
from forkpoint.store.values import DEFAULT_TENANT

_FILE = "sqlite:///"


async def open_store(url: str, *, tenant: str = DEFAULT_TENANT) -> Store:
    """Opens the store at ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``memory:`` for a tenant."""
    from forkpoint.store.sqlite import SqliteStore

    if url == "memory:":
        return await SqliteStore.open(None, tenant=tenant)
    if url.startswith(_FILE):
        path = unquote(url.removeprefix(_FILE), errors="surrogateescape")
        if not path or "\0" in path:
            raise BadStoreUrl(url, "it names no file")
        return await SqliteStore.open(path, tenant=tenant)
    raise BadStoreUrl(_without_password(url), "its kind is not known")


def _without_password(url: str) -> str:
    """The address as an error may show it: errors end up in logs."""
    return re.sub(r"(?<=//)[^/@]*@", "***@", url)
