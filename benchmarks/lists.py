"""A long list of conversations, page by page: `python -m benchmarks.lists`.

The store has many forks of one conversation. Each page that is measured is compared with the first page of the list by
creation: pages further down, lists by last use, and lists that a tag or a status narrows down, also to nothing. In the
second table nine of ten conversations are sub-agents, which a list leaves out.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from msgspec import Struct

from benchmarks.progress import Progress
from benchmarks.tables import factor, milliseconds
from benchmarks.timing import Contender, Stopwatch, interleave
from forkpoint.clock import system_clock
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store import ListOrder, Store, open_store
from forkpoint.store.sqlite.connection import SQL, connect
from forkpoint.store.tables.operations.conversations import fork
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import DEFAULT_TENANT, NewConversation, NewFork, Tags
from forkpoint.testing.samples import exchange

PAGE = 50
LIMIT = 2.0
"""How many times the first page's time any page of a list may take."""

RARE = 60  # conversations that have the rare tag, all of them old
OPEN = 100  # conversations that have an open turn
FIRST = "by creation, first page"


class Shown(Struct, frozen=True):
    """One page that is measured: its name, what is asked for, and how many conversations it must have."""

    name: str
    asked: dict[str, Any]
    items: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=110_000, help="how many there are (default: 110,000)")
    parser.add_argument("--rounds", type=int, default=50, help="how often each page is read (default: 50)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(f"{folder}/lists.db", given.conversations, given.rounds, Progress()))


async def _measure(path: str, count: int, rounds: int, progress: Progress) -> int:
    async with await open_store(f"sqlite:///{path}") as store:
        progress.say(f"making {count:,} conversations")
        ids = await _fill(store, path, count)
        pages = [*_pages(count), *await _further_pages(store, count)]
        slow = await _compare(store, f"{count:,} conversations", pages, rounds, progress)
        progress.say("making nine of ten of them sub-agents")
        left = _hide(path, ids)
        pages = [Shown(FIRST, {}, PAGE), *await _further_pages(store, left)]
        title = f"{count:,} conversations, and all but {left:,} are sub-agents"
        slow += await _compare(store, title, pages, rounds, progress)
    return int(bool(slow))


async def _fill(store: Store, path: str, count: int) -> list[str]:
    """Makes forks, in one transaction, by the operation that makes forks. Half of them are then used, in any order."""
    root = await store.create(NewConversation(id=new_id()), exchange("hello"))
    now = system_clock()
    ids = [new_id(now + number) for number in range(1, count)]
    with closing(connect(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        for number, id in enumerate(ids):
            scope = Scope(DEFAULT_TENANT, now + number, b"", lambda holder, seen: False)
            tags = (("team", str(number % 10)), *((("kind", "rare"),) if number < RARE else ()))
            new = NewFork(id=id, cache="{}", title=f"Conversation {id}", tags=tags)
            fork(db, scope, root.id, new, at=None, before=None, if_revision=None, key=None, draft=False)
        for number, id in enumerate(random.Random(0).sample(ids, len(ids) // 2)):
            used = {"tenant": DEFAULT_TENANT, "id": id_to_bytes(id), "now": now + count + number}
            db.execute(SQL["use_conversation"], used)
        db.execute("COMMIT")
    for id in ids[:: max(1, len(ids) // OPEN)][:OPEN]:
        await store.begin(id, new_id())
    return [root.id, *ids]


def _hide(path: str, ids: Sequence[str]) -> int:
    """Makes nine of ten conversations sub-agents. Returns how many are left that a list shows."""
    shown = set(ids[::10])
    with closing(connect(path)) as db:
        hidden = [(DEFAULT_TENANT, id_to_bytes(id)) for id in ids if id not in shown]
        db.execute("BEGIN IMMEDIATE")
        db.executemany("UPDATE conversation SET lineage_kind = 'sub_agent' WHERE tenant = ? AND id = ?", hidden)
        db.execute("COMMIT")
    return len(shown)


def _pages(count: int) -> Iterator[Shown]:
    """The first pages that are measured."""
    common, rare, nobody = (("team", "7"),), (("kind", "rare"),), (("kind", "nobody has it"),)
    yield Shown(FIRST, {}, PAGE)
    yield Shown("by last use, first page", {"order": "used"}, PAGE)
    for order in ("created", "used"):
        of: list[tuple[str, Tags, int]] = [
            ("a common tag", common, PAGE),
            ("a rare tag", rare, min(RARE, PAGE)),
            ("a tag that nobody has", nobody, 0),
            ("a common and a rare tag", common + rare, RARE // 10),
        ]
        for what, tags, items in of:
            yield Shown(f"{_by(order)}, {what}", {"order": order, "tags": tags}, items)
        yield Shown(f"{_by(order)}, running", {"order": order, "status": "running"}, min(PAGE, OPEN, count))
        yield Shown(f"{_by(order)}, awaiting approval", {"order": order, "status": "awaiting_approval"}, 0)
        yield Shown(f"{_by(order)}, interrupted", {"order": order, "status": "interrupted"}, 0)
        yield Shown(f"{_by(order)}, idle", {"order": order, "status": "idle"}, PAGE)


async def _further_pages(store: Store, count: int) -> list[Shown]:
    orders: tuple[ListOrder, ...] = ("created", "used")
    return [await _page_at(store, order, part, count) for order in orders for part in (0.5, 1.0)]


async def _page_at(store: Store, order: ListOrder, part: float, count: int) -> Shown:
    """The page in the middle of the list, or the last one."""
    cursor, at = None, 0
    wanted = int(count * part) - PAGE
    while at < wanted:
        page = await store.conversations(
            cursor=cursor, order=order, limit=min(1000, wanted - at), sub_agents=False, sides=False
        )
        cursor, at = page.next, at + len(page.items)
    where = "last" if part == 1.0 else "middle"
    return Shown(f"{_by(order)}, {where} page", {"order": order, "cursor": cursor}, PAGE)


async def _compare(store: Store, title: str, pages: Sequence[Shown], rounds: int, progress: Progress) -> int:
    """Prints how long each page takes beside the first one. Returns how many take too long."""

    async def step(watch: Stopwatch, shown: Shown) -> None:
        with watch:
            page = await store.conversations(limit=PAGE, sub_agents=False, sides=False, **shown.asked)
        assert len(page.items) == shown.items, f"{shown.name}: {len(page.items)} conversations, not {shown.items}"

    progress.say("reading")
    found = await interleave([Contender(one.name, "", partial(step, shown=one)) for one in pages], rounds, progress)
    first = found[FIRST, ""].median
    print(f"{title}, {PAGE} to a page:")
    for (name, _), times in found.items():
        print(f"  {name:44} {milliseconds(times.median):>10}  {factor(times.median / first):>7}")
    return sum(times.median > first * LIMIT for times in found.values())


def _by(order: str) -> str:
    return "by creation" if order == "created" else "by last use"


if __name__ == "__main__":
    sys.exit(main())
