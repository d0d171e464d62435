"""Absences: what may be missing from a store, since a record of its family says that it was removed.
Tests: tests/store/test_verify.py."""

from collections import defaultdict

from msgspec import Struct

from forkpoint.history.records import ErasedRun, Fact, Left, Removal
from forkpoint.ids import id_to_bytes


class Removed(Struct, frozen=True):
    """A conversation that was removed, when, and from which family."""

    removal: Removal
    time: int
    family: bytes


class Life(Struct, frozen=True):
    """The records of one conversation among those of all that have had its id.

    They begin after the number ``follows`` with the digest ``first``, and end with ``records`` and ``digest``.
    """

    follows: int
    first: bytes
    records: int
    digest: bytes
    removed: bool


class Absences:
    """What the records of families have said to be removed."""

    def __init__(self) -> None:
        self.removed: defaultdict[bytes, list[Removed]] = defaultdict(list)  # by conversation
        self.erased_turns: set[bytes] = set()
        self.expired_turns: set[bytes] = set()
        self.erased_conversations: set[bytes] = set()
        self.runs: defaultdict[bytes, list[ErasedRun]] = defaultdict(list)  # by the digest of the first event
        self.left: dict[bytes, dict[int, Left]] = {}  # by conversation, and by where its records begin
        self.tenants: defaultdict[bytes, set[str]] = defaultdict(set)  # under which a family's members were born
        self.lost_bases: dict[bytes, str] = {}  # digests of events that turns name and that are not where they say

    def learn(self, fact: Fact, family: bytes) -> None:
        """Takes in what a record of a family's chain says."""
        if fact.removed is not None:
            gone = Removed(fact.removed, fact.time, family)
            self.removed[id_to_bytes(fact.removed.conversation)].append(gone)
        if fact.erased is not None:
            self.erased_turns.update(map(id_to_bytes, fact.erased.turns))
            self.erased_conversations.update(map(id_to_bytes, fact.erased.conversations))
            for run in fact.erased.runs:
                self.runs[run.first].append(run)
        if fact.imported is not None:
            self.tenants[family].add(fact.imported.tenant)
            for run in fact.imported.parted:
                self.runs[run.first].append(run)
            for left in fact.imported.left:
                self._leave(id_to_bytes(left.conversation), left)
        if fact.expired is not None:
            self.expired_turns.update(map(id_to_bytes, fact.expired.turns))

    def lost_its_texts(self, turn: bytes) -> bool:
        """Whether the input, the error and the steps of a turn may be missing."""
        return turn in self.erased_turns or turn in self.expired_turns

    def _leave(self, conversation: bytes, left: Left) -> None:
        """Keeps as much of a chain as any import has brought."""
        known = self.left.setdefault(conversation, {})
        if left.follows not in known or known[left.follows].records < left.records:
            known[left.follows] = left

    def past_lives(self, conversation: bytes, now: int | None = None) -> list[Life]:
        """The chains of all conversations with this id that were removed, or that an import has left behind, in order.

        ``now`` is where the records begin of the conversation that has the id now: an import has brought it since.
        """
        removals: list[Removal | Left] = [gone.removal for gone in self.removed.get(conversation, ())]
        begun = {one.follows for one in removals} | {now}
        removals += [left for follows, left in self.left.get(conversation, {}).items() if follows not in begun]
        lives = [Life(one.follows, one.first, one.records, one.digest, removed=True) for one in removals]
        return sorted(lives, key=lambda life: (life.follows, life.records))
