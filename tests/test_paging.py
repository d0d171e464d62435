"""Tests for reading long lists a page at a time."""

import gc
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkpoint.paging import LIMIT, Page, every, every_sync

PAGES = st.lists(st.lists(st.integers(), max_size=3).map(tuple), min_size=1, max_size=5)


class Pages:
    """A list in pages of any size, also empty ones. It keeps the cursors and limits that it was asked for."""

    def __init__(self, pages: list[tuple[int, ...]]) -> None:
        self.pages = pages
        self.asked: list[tuple[str | None, int]] = []

    def read(self, *, cursor: str | None, limit: int) -> Page[int]:
        self.asked.append((cursor, limit))
        number = int(cursor or 0)
        return Page(self.pages[number], None if number + 1 == len(self.pages) else str(number + 1))

    async def read_async(self, *, cursor: str | None, limit: int) -> Page[int]:
        await anyio.lowlevel.checkpoint()
        return self.read(cursor=cursor, limit=limit)


def read_async(pages: Pages) -> list[int]:
    async def read() -> list[int]:
        return [item async for item in every(pages.read_async)]

    return anyio.run(read)


def read_sync(pages: Pages) -> list[int]:
    return list(every_sync(pages.read))


@pytest.mark.parametrize("read", [read_async, read_sync])
@given(sizes=PAGES)
def test_all_items_of_all_pages_come_in_order_and_each_page_is_read_once(
    read: Callable[[Pages], list[int]], sizes: list[tuple[int, ...]]
) -> None:
    pages = Pages(sizes)
    assert read(pages) == [item for page in sizes for item in page]
    assert pages.asked == [(str(number) if number else None, LIMIT) for number in range(len(sizes))]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_caller_may_leave_at_any_item_and_the_rest_is_not_read(backend: str) -> None:
    pages = Pages([(1, 2), (3,), (4,)])

    async def first_above(most: int) -> int | None:
        async for item in every(pages.read_async, limit=2):
            if item > most:
                return item
        return None

    async def leave() -> int | None:
        found = await first_above(2)
        gc.collect()  # an async generator that nobody closes would be warned of here
        return found

    assert anyio.run(leave, backend=backend) == 3
    assert pages.asked == [(None, 2), ("1", 2)]
