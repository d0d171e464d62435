"""Comparison: what a family in a file has that the store has not, found before anything is written.

A chain of records vouches for all that came before its end. So two histories of a conversation are the same as far as
one chain is the beginning of the other, and if neither is, they have gone different ways: then nothing is imported.
Events are found by their turns, whose ids are the same in every store. Tests: tests/store/test_import.py.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct, field

from forkpoint.errors import AlreadyExists, ImportRefused
from forkpoint.history import records
from forkpoint.history.exports.lines import Chain, ConversationLine, Line, RecordLine, TurnLine
from forkpoint.ids import id_from_bytes, id_to_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.erasure import removal
from forkpoint.store.tables.operations import conversations
from forkpoint.store.tables.rows import ORDINALS, Scope

Step: TypeAlias = Literal["new", "grown", "same"]
"""What an import does with a conversation: makes it, lets it go on, or leaves it as it is."""

_PARTED = "it has gone another way here than in the file"


class Known(Struct, frozen=True):
    """How far the store has a segment of a file: up to an ordinal, and the key of the event there."""

    upto: int
    key: int


class Comparison(Struct):
    """What a family in a file has that the store has not."""

    steps: dict[str, Step] = field(default_factory=dict)  # by conversation
    names: dict[str, str] = field(default_factory=dict)  # other names for conversations whose own are taken
    known: dict[int, Known] = field(default_factory=dict)  # by the segment's number in the file
    chains: dict[str, int] = field(default_factory=dict)  # how many records of each chain the store has
    family_grows: bool = False
    removed: frozenset[bytes] = frozenset()  # the conversations of the family that were deleted here
    erases: bool = False  # whether something was erased there, and the store does not know it

    @property
    def changes(self) -> bool:
        return self.family_grows or any(step != "same" for step in self.steps.values())


def compare(db: Database, scope: Scope, family: bytes, lines: Iterable[Line], *, rename: bool) -> Comparison:
    """Compares the lines of a family with what the store has. Raises `ImportRefused` or `AlreadyExists`."""
    comparing = _Comparing(db, scope, family, rename)
    for line in lines:
        comparing.take(line)
    return comparing.done()


class _Comparing:
    def __init__(self, db: Database, scope: Scope, family: bytes, rename: bool) -> None:
        self._db, self._scope, self._family, self._rename = db, scope, family, rename
        self._family_chain = records.family_chain(family).hex()
        self._removed = frozenset(
            row["subject"]
            for row in db.run("removals_of_family", {"tenant": scope.tenant, "chain": records.family_chain(family)})
        )
        self._result = Comparison(removed=self._removed)
        self._told: ConversationLine | None = None
        self._meets: tuple[int, bytes, str] | None = None  # where the store's chain ends, and whose it is
        self._family_records = 0  # that the file has
        self._parted: ImportRefused | None = None  # the family's own chain goes two ways
        self._erased_there = False  # something that was not erased here
        self._taken: set[str] = set()

    def take(self, line: Line) -> None:
        if not isinstance(line, RecordLine):
            self._check_family()
        match line:
            case ConversationLine():
                self._told = line
            case Chain():
                told, self._told = self._told, None
                self._chain(line, told)
            case RecordLine():
                self._record(line)
            case TurnLine():
                self._turn(line)
            case _:
                pass

    def done(self) -> Comparison:
        after = {"chain": records.family_chain(self._family), "number": self._family_records}
        found = self._db.run("newer_erasure", after | {"tenant": self._scope.tenant}).fetchone()
        if self._result.changes and found is not None:
            why = "something was erased here after the file had left it, and the file may have it; export it anew"
            raise ImportRefused(f"family {id_from_bytes(self._family)}", why)
        return self._result

    def _chain(self, line: Chain, told: ConversationLine | None) -> None:
        self._meets = None
        if line.chain == self._family_chain:
            end = self._db.run(
                "end_of_chain", {"tenant": self._scope.tenant, "chain": bytes.fromhex(line.chain)}
            ).fetchone()
            here = (0, b"") if end is None else (end["records"], end["digest"])
            self._result.family_grows = line.records > here[0]
            self._family_records = line.records
            try:
                self._meet(line, here, f"family {id_from_bytes(self._family)}")
            except ImportRefused as refused:
                self._parted = refused  # its records may tell why
            return
        id = bytes.fromhex(line.chain)[1:]
        name = f"conversation {id_from_bytes(id)}"
        row = self._db.run("read_conversation", {"tenant": self._scope.tenant, "id": id}).fetchone()
        if row is not None and row["family"] != self._family:
            raise ImportRefused(name, "a conversation of another family has its id here")
        if row is None:
            self._absent(line, told, id, name)
        elif told is None:
            if line.records > row["records"]:
                raise ImportRefused(name, "a fork of it is in the file, and it has gone on there since it was here")
            self._meet(line, (row["records"], row["record_digest"]), name)
        else:
            self._present(line, told, row, name)

    def _absent(self, line: Chain, told: ConversationLine | None, id: bytes, name: str) -> None:
        key = {"tenant": self._scope.tenant, "chain": bytes.fromhex(line.chain)}
        end = self._db.run("record_end", key).fetchone()
        if told is not None:
            if id in self._removed:
                raise ImportRefused(name, "it was deleted here")
            self._result.steps[told.id] = "new"
            self._name(told)
        elif id in self._removed and (end is None or end["number"] < line.records):
            raise ImportRefused(name, "it was deleted here, and a fork of it is in the file from after that")
        if end is not None:
            self._meet(line, (end["number"], end["digest"]), name)
        else:
            self._result.chains[line.chain] = 0

    def _present(self, line: Chain, told: ConversationLine, row: Row, name: str) -> None:
        if told.born != row["born"]:
            raise ImportRefused(name, "it began otherwise here")
        grown = line.records > row["records"]
        self._result.steps[told.id] = "grown" if grown else "same"
        if grown:
            conversations.check_free(row, self._scope)
            if told.name != row["name"]:
                self._name(told)
        follows = records.decode_birth(told.born).follows
        if min(line.records, row["records"]) == follows:  # nothing but the birth, which is the same
            self._result.chains[line.chain] = row["records"]
        else:
            self._meet(line, (row["records"], row["record_digest"]), name)

    def _name(self, told: ConversationLine) -> None:
        """Finds out whether a conversation may have its name. Raises `AlreadyExists`."""
        name, number = told.name, 1
        while name in self._taken or self._is_taken(name, told.id):
            if not self._rename:
                raise AlreadyExists("conversation", told.name)
            number += 1
            name = f"{told.name[:120]}-{number}"
        self._taken.add(name)
        if name != told.name:
            self._result.names[told.id] = name

    def _is_taken(self, name: str, id: str) -> bool:
        row = self._db.run("find_conversation", {"tenant": self._scope.tenant, "name": name}).fetchone()
        return row is not None and row["id"] != id_to_bytes(id)

    def _meet(self, line: Chain, here: tuple[int, bytes], name: str) -> None:
        """Compares the shorter of two chains with the other at its end: at once, or when that record comes."""
        number, digest = here
        self._result.chains[line.chain] = number
        if line.records > number:
            self._meets = (number, digest, name) if number else None
            return
        if line.records == number:
            same = digest.hex() == line.digest
        else:
            at = {"tenant": self._scope.tenant, "chain": bytes.fromhex(line.chain), "number": line.records}
            found = self._db.run("record_at", at).fetchone()
            same = found is not None and found["digest"].hex() == line.digest
        if not same:
            raise ImportRefused(name, _PARTED)

    def _record(self, line: RecordLine) -> None:
        if self._meets is not None and self._meets[0] == line.number:
            _, digest, name = self._meets
            if digest.hex() != line.digest:
                parted = ImportRefused(name, _PARTED)
                if not name.startswith("family"):
                    raise parted
                self._parted = parted
        if line.kind == "erased" and line.subject is not None:
            self._erased_there |= not removal.is_made(self._db, self._scope, line.subject)
        elif line.kind in ("deleted", "expired") and line.body is not None:
            self._check_removal(records.decode_fact(line.body).removed)

    def _check_family(self) -> None:
        """Looks at what the family's own records have said, after the last of them."""
        if self._parted is not None and self._erased_there:
            why = "something was erased in it after it had come here, and not here; erase the same here too"
            raise ImportRefused(self._parted.what, why)
        if self._parted is not None:
            raise self._parted
        self._result.erases = self._erased_there

    def _check_removal(self, removed: records.Removal | None) -> None:
        """Raises `ImportRefused` if a conversation was deleted in the other store, and is here."""
        if removed is None:
            return
        of_it = {"tenant": self._scope.tenant, "id": id_to_bytes(removed.conversation)}
        row = self._db.run("read_conversation", of_it).fetchone()
        if row is not None and row["first_digest"] == removed.first:
            raise ImportRefused(f"conversation {removed.conversation}", "it was deleted there, and is still here")

    def _turn(self, line: TurnLine) -> None:
        row = self._db.run("turn_row", {"id": id_to_bytes(line.id)}).fetchone()
        if row is None:
            return
        if row["tenant"] != self._scope.tenant:
            raise ImportRefused(f"turn {line.id}", "another tenant of this store has it, and a turn has one place")
        if line.end is None or row["end"] is None:
            return
        known = self._result.known.get(line.end[0])
        if known is not None and known.upto >= line.end[1]:
            return
        if self._db.run("event_at", {"id": row["end"]}).fetchone() is None:
            raise ImportRefused(f"turn {line.id}", "only a part of it is here, since the rest was not reached any more")
        if row["end"] & ORDINALS != line.end[1]:
            raise ImportRefused(f"turn {line.id}", "it ends elsewhere here than in the file")
        self._result.known[line.end[0]] = Known(line.end[1], row["end"])
