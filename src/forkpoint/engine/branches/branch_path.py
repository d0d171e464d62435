"""A conversation with the path to its head, both read at one moment, so that two branches can be compared.
Tests: tests/conversation/test_diff.py, test_bring.py."""

from msgspec import Struct

from forkpoint.events import Position
from forkpoint.history.paths import Path, common_ancestor
from forkpoint.store.protocol import Store
from forkpoint.store.values import StoredConversation


class BranchPath(Struct, frozen=True):
    """A conversation and the path to its head, as they were at one moment."""

    record: StoredConversation
    path: Path

    @property
    def head(self) -> Position | None:
        return self.path.head


async def read_branch_path(store: Store, id: str) -> BranchPath:
    """A conversation with the path to its head."""
    while True:
        record, path = await store.read(id), await store.path(id)
        if record.head.position == path.head:  # else it has moved between the two
            return BranchPath(record, path)


async def are_unchanged(store: Store, *branches: BranchPath) -> bool:
    """Whether conversations still stand where they stood."""
    return all([await read_branch_path(store, one.record.id) == one for one in branches])


def ancestor_of(a: BranchPath, b: BranchPath) -> Position | None:
    """The last event that two conversations share; None if they share none."""
    return common_ancestor(a.path, b.path) if a.record.family == b.record.family else None
