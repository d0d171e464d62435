"""Long lists, read a page at a time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

LIMIT = 1000
"""How many items a page has at most, if a whole list is read."""


class Page(Struct, Generic[T], frozen=True):
    """Part of a list, and the cursor for the rest (None at the end)."""

    items: tuple[T, ...]
    next: str | None = None


def every(read: Callable[..., Awaitable[Page[T]]], *, limit: int = LIMIT) -> AsyncIterator[T]:
    """All items of a list. ``read`` is called with a ``cursor`` and a ``limit`` for each page::

    async for record in every(partial(store.conversations, family=family)): ...

    It reads a page only when the caller wants an item of it, so a caller may leave the loop at any item.
    """
    return _Items(read, limit)


def every_sync(read: Callable[..., Page[T]], *, limit: int = LIMIT) -> Iterator[T]:
    """All items of a list, as `every` has them, for a ``read`` that is not async."""
    page = read(cursor=None, limit=limit)
    yield from page.items
    while page.next is not None:
        page = read(cursor=page.next, limit=limit)
        yield from page.items


class _Items(AsyncIterator[T]):
    # An async generator would have to be closed by each caller that leaves the loop early: trio warns if it is not.
    def __init__(self, read: Callable[..., Awaitable[Page[T]]], limit: int) -> None:
        self._read = read
        self._limit = limit
        self._items: Iterator[T] = iter(())
        self._cursor: str | None = None
        self._at_end = False

    async def __anext__(self) -> T:
        while True:
            for item in self._items:
                return item
            if self._at_end:
                raise StopAsyncIteration
            page = await self._read(cursor=self._cursor, limit=self._limit)
            self._items, self._cursor, self._at_end = iter(page.items), page.next, page.next is None
