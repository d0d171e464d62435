"""The check of an export: whether a file is as it was written, without any store.

It reads line after line and keeps little: eight bytes for each event, and what the lines of one family say about its
erasures and its conversation in hand. It finds a line that was changed by the digest that the line ends with; and if
somebody made these digests anew, by the chains of events and of records, which lead to the digests that an anchor or an
earlier `forkpoint show` has. Tests: tests/history/test_exports.py.
"""

from array import array
from collections.abc import Iterable
from hashlib import sha256

import msgspec
from msgspec import UNSET, Struct

from forkpoint.events import Usage
from forkpoint.history import records
from forkpoint.history.digests import Link, flaw, root_digest
from forkpoint.history.exports import lines
from forkpoint.history.exports.chains import ChainCheck, StepsCheck, from_hex, load_usage
from forkpoint.history.exports.lines import (
    FORMAT,
    NOTHING,
    VERSION,
    Chain,
    ConversationLine,
    End,
    EventLine,
    Family,
    FamilyEnd,
    Header,
    Line,
    Place,
    RecordLine,
    Segment,
    Spent,
    StepLine,
    TurnLine,
)
from forkpoint.history.records import Fact, Point
from forkpoint.ids import id_from_bytes, id_to_bytes

MOST_FLAWS = 100
"""So many flaws are told; a file that has more of them is no better known by the rest."""


class LineFlaw(Struct, frozen=True):
    """What is wrong with a file, and in which line. Line 0: with the file as a whole."""

    line: int
    what: str


class Part(Struct, frozen=True):
    """A family in a file: the lines that tell of it, and where the first of them begins, in bytes."""

    family: str
    whole: bool
    offset: int
    first: int
    end: FamilyEnd


class ExportCheck:
    """One reading of a file. Give it the lines in order, then call `finish`."""

    def __init__(self) -> None:
        self.flaws: list[LineFlaw] = []
        self.header: Header | None = None
        self.parts: list[Part] = []
        self.lines = self.bytes = 0
        self.conversations = self.events = self.erased = 0
        self._last = NOTHING
        self._summed = sha256()
        self._family: _FamilyCheck | None = None
        self._began = (0, 0)
        self._end: End | None = None

    def take(self, raw: bytes) -> Line | None:
        """Checks the next line. Returns what it says, or None if it cannot be read."""
        self.lines += 1
        offset, self.bytes = self.bytes, self.bytes + len(raw)
        if self._end is not None:
            self._found("something follows the last line of the export")
            return None
        try:
            text, stated = lines.parted(raw)
            line = lines.decoded(text)
        except (ValueError, msgspec.MsgspecError) as error:
            self._found(f"it cannot be read ({error})" if raw.endswith(b"\n") else "the file was cut off here")
            return None
        before = NOTHING if isinstance(line, lines.Seal.FIRST) else self._last
        if lines.digest_of(before, text) != stated:
            self._found("it was changed, or the line before it was removed: its digest is another")
        self._last = stated
        try:
            self._line(line, offset)
        except (ValueError, OverflowError, msgspec.MsgspecError) as error:
            self._found(f"it cannot be read ({error})")
        return line

    def finish(self) -> None:
        """Says whether the file is whole, after its last line."""
        if self._end is None:
            self._found("the file is cut off: its last line is missing", self.lines + 1)

    def _found(self, what: str, line: int | None = None) -> None:
        if len(self.flaws) < MOST_FLAWS:
            self.flaws.append(LineFlaw(self.lines if line is None else line, what))

    def _line(self, line: Line, offset: int) -> None:
        if (self.lines == 1) != isinstance(line, Header):
            self._found("a header is expected here" if self.lines == 1 else "a second header stands here")
        match line:
            case Header():
                if line.format != FORMAT or line.version != VERSION:
                    self._found(f"it is of version {line.version}, and version {VERSION} can be read")
                self.header = line
                self._summed.update(self._last.encode())
            case Family():
                if self._family is not None:
                    self._found("the family before it has no end")
                self._family, self._began = _FamilyCheck(line, self), (offset, self.lines)
            case End():
                self._at_the_end(line)
            case _ if self._family is None:
                self._found("it belongs to no family")
            case FamilyEnd():
                self._family.end(line)
                self._summed.update(self._last.encode())
                self.parts.append(Part(line.family, self._family.whole, *self._began, line))
                self._family = None
            case _:
                self._family.take(line)

    def _at_the_end(self, line: End) -> None:
        if self._family is not None:
            self._found("the family before it has no end")
        if (line.families, line.lines) != (len(self.parts), self.lines - 1):
            self._found("families or lines before it are missing")
        if line.digest != self._summed.hexdigest():
            self._found("a family was removed, added or exchanged: the digest of all families is another")
        self._end = line


class _FamilyCheck:
    """The check of one family."""

    def __init__(self, line: Family, check: ExportCheck) -> None:
        self.whole = line.whole
        self._id = line.family
        self._key = id_to_bytes(line.family)
        self._check = check
        self._found = check._found
        self._counts = dict.fromkeys(("conversations", "segments", "events", "turns", "records"), 0)
        self._segments: list[_Events] = []
        self._erased = _Erased()
        self._conversation: ConversationLine | None = None
        self._chain: ChainCheck | None = None
        self._chains: set[str] = set()
        self._ids: set[str] = set()  # of the conversations that are in the file
        self._steps: StepsCheck | None = None
        self._charges: dict[str, Usage] = {}

    def take(self, line: Line) -> None:
        self._end_what_is_in_hand(line)
        match line:
            case Segment():
                self._segment(line)
            case EventLine():
                self._event(line)
            case ConversationLine():
                self._told(line)
            case Chain():
                self._begin_chain(line)
            case RecordLine():
                self._record(line)
            case TurnLine():
                self._turn(line)
            case StepLine():
                if self._steps is None:
                    self._found("it is a step of no turn")
                else:
                    self._steps.take(line, self._found)
            case Spent():
                self._spent(line)
            case _:
                self._found("it does not belong into a family")

    def _end_what_is_in_hand(self, line: Line) -> None:
        if self._steps is not None and not isinstance(line, StepLine):
            self._steps.end(self._found)
            self._steps = None
        if self._chain is not None and not isinstance(line, RecordLine | TurnLine | StepLine):
            self._end_chain()
        if self._conversation is not None and not isinstance(line, Chain | RecordLine | TurnLine | StepLine):
            self._found(f"the records of conversation {self._conversation.id} are missing")
            self._conversation = None

    def end(self, line: FamilyEnd) -> None:
        self._end_what_is_in_hand(line)
        if line.family != self._id:
            self._found("it ends another family")
        for what, count in self._counts.items():
            if getattr(line, what) != count:
                self._found(f"{getattr(line, what)} {what} are announced, and {count} are there")

    # Events.

    def _segment(self, line: Segment) -> None:
        self._counts["segments"] += 1
        if line.segment != self._counts["segments"]:
            self._found("a segment before it is missing")
        after = 0 if line.base is None else line.base[1]
        if line.base is None:
            if line.base_digest != root_digest(self._key).hex():
                self._found("it starts at the root, with the digest of another family")
        elif not self._stands(line.base, bytes.fromhex(line.base_digest)):
            self._found("it names another digest than its base has")
        self._segments.append(_Events(after, bytes.fromhex(line.base_digest)))
        self._erased.begin_segment()

    def _event(self, line: EventLine) -> None:
        if not self._segments:
            return self._found("it is an event of no segment")
        self._counts["events"] += 1
        self._check.events += 1
        events = self._segments[-1]
        if line.ordinal != events.first + len(events.digests):
            self._found("an event before it is missing")
        link = Link(
            id_to_bytes(line.turn),
            line.envelope,
            line.payload,
            from_hex(line.salt),
            bytes.fromhex(line.payload_digest),
            bytes.fromhex(line.chain_digest),
        )
        if what := flaw(events.last, link):
            self._found(what)
        events.add(link.chain_digest)
        if self._erased.names(link) != (link.payload is None) and link.payload is None:
            self._found("its payload is missing, and no record says that it was erased")
        self._check.erased += link.payload is None
        return None

    def _stands(self, place: Place, digest: bytes) -> bool:
        """Whether the event at a place has this digest. Nobody can tell that of a place outside of the file."""
        segment, ordinal = place
        if segment == 0:
            return True
        return 0 < segment <= len(self._segments) and self._segments[segment - 1].has(ordinal, digest)

    # Conversations and records.

    def _told(self, line: ConversationLine) -> None:
        self._counts["conversations"] += 1
        self._check.conversations += 1
        id_to_bytes(line.id)
        self._ids.add(line.id)
        if line.head is not None and not self._stands(line.head, bytes.fromhex(line.head_digest)):
            self._found("its head names another digest than the event there")
        self._conversation = line

    def _begin_chain(self, line: Chain) -> None:
        key = bytes.fromhex(line.chain)
        if line.chain in self._chains or key[:1] not in (b"c", b"f") or len(key) != 17:
            self._found("it is not a chain of this family, or it is here already")
        self._chains.add(line.chain)
        told, self._conversation = self._conversation, None
        if key == records.family_chain(self._key):
            if self._counts["segments"] or told is not None:
                self._found("the family's own records come first")
            self._chain = ChainCheck(line, records.start_of(key), 0)
            return
        if told is None:
            starts = self._erased.starts(key)
            if line.first is not None:
                starts[line.follows] = bytes.fromhex(line.first)
            self._chain = ChainCheck(line, None, 0, starts)
            return
        if key != records.conversation_chain(id_to_bytes(told.id)):
            self._found("it is not the chain of the conversation before it")
        birth = records.decode_birth(told.born)
        stated = (birth.id, birth.family, birth.kind, birth.source, birth.turn, birth.call, birth.carries_metrics)
        lineage = (told.lineage_kind, told.lineage_source, told.lineage_turn, told.lineage_call)
        if stated != (told.id, self._id, *lineage, told.carries_metrics) or birth.created != told.created:
            self._found("the conversation says other things than its birth")
        source = records.NO_SOURCE if birth.records is None else bytes.fromhex(line.source or "")
        first = records.first_digest(source, birth.records or 0, told.born)
        self._chain = ChainCheck(line, first, birth.follows, self._erased.starts(key), told, birth)

    def _record(self, line: RecordLine) -> None:
        if self._chain is None:
            return self._found("it is a record of no chain")
        self._counts["records"] += 1
        fact = self._chain.take(line, self._found)
        if fact is not None and self._chain.is_family:
            self._erased.learn(fact)
        if fact is not None and fact.charge is not None:
            self._charges[fact.charge.id] = fact.charge.usage
        return None

    def _end_chain(self) -> None:
        assert self._chain is not None
        self._chain.end(self._found, root_digest(self._key))
        self._chain = None

    def _spent(self, line: Spent) -> None:
        """Compares what the ledger says with the record of the charge, or with that of the conversation's removal."""
        id_to_bytes(line.conversation)
        usage = load_usage(line.usage)
        if line.id is None:
            is_told = usage in self._erased.spent.get(line.conversation, ())
            if line.conversation in self._erased.spent and not is_told:
                self._found("a deleted conversation had spent something else, as its last record says")
        elif line.conversation in self._ids and self._charges.get(line.id) != usage:
            self._found("no record tells of such a charge")

    # Turns.

    def _turn(self, line: TurnLine) -> None:
        self._counts["turns"] += 1
        key = id_to_bytes(line.id)
        self._steps = StepsCheck(line, key, self._erased.turns)
        usage = load_usage(line.usage)
        fact, salt = (None, None) if self._chain is None else self._chain.last
        if self._chain is None or fact is None or fact.turn is None or fact.turn.id != line.id:
            # A turn that has only begun has no record, nor has one of a conversation that was deleted before there were
            # records.
            if line.outcome != "running" and line.conversation in self._ids:
                self._found("the record before it is not about this turn")
            return
        facts = fact.turn
        if records.conversation_chain(id_to_bytes(line.conversation)) != self._chain.key:
            self._found("it belongs to another conversation than its record")
        stated: list[object] = [facts.outcome, facts.started, facts.by, facts.retry_of]
        if stated != [line.outcome, line.started, line.by, line.retry_of]:
            self._found("the turn says other things than its last record")
        if line.outcome == "running":
            return  # what it does now, its next record will say
        if (facts.usage, facts.ended) != (usage, line.ended):
            self._found("the turn states another cost or end than its last record")
        for name, point, place in (("base", facts.base, line.base), ("end", facts.end, line.end)):
            self._at(name, point, place)
        steered = None if line.steered is UNSET else line.steered
        texts = [("input", facts.input, line.input), ("error", facts.error, line.error)]
        for name, digest, text in [*texts, ("list of steered messages", facts.steered, steered)]:
            if text is None and digest is not None and line.id not in self._erased.turns:
                self._found(f"its {name} is missing, and no record says that it was erased")
            if text is not None and salt is not None and records.salted(salt, text) != digest:
                self._found(f"its {name} is not what its last record says")
        if facts.steps != from_hex(line.steps_digest):
            self._found("its steps are not those that its last record names")
        return

    def _at(self, name: str, point: Point | None, place: Place | None) -> None:
        if place is None or place[0] == 0:
            return
        if point is None or point.ordinal != place[1]:
            self._found(f"its {name} is not where its last record says")
            return
        is_here = place[0] <= len(self._segments) and place[1] <= self._segments[place[0] - 1].upto
        if is_here and not self._stands(place, point.digest):
            self._found(f"its {name} has another digest than its last record says")


class _Events:
    """The digests of a segment's events, eight bytes of each: enough to tell one from another."""

    def __init__(self, after: int, digest: bytes) -> None:
        self.first = after + 1
        self.digests = array("Q")
        self.last = digest

    @property
    def upto(self) -> int:
        return self.first + len(self.digests) - 1

    def add(self, digest: bytes) -> None:
        self.digests.append(int.from_bytes(digest[:8], "big"))
        self.last = digest

    def has(self, ordinal: int, digest: bytes) -> bool:
        return self.first <= ordinal <= self.upto and (
            self.digests[ordinal - self.first] == int.from_bytes(digest[:8], "big")
        )


class _Erased:
    """What the family's records say is gone, or left behind."""

    def __init__(self) -> None:
        self.turns: set[str] = set()
        self.spent: dict[str, list[Usage]] = {}  # by conversations that are deleted
        self._runs: dict[bytes, records.ErasedRun] = {}
        self._run: tuple[bytes, int] | None = None
        self._starts: dict[str, dict[int, bytes]] = {}

    def learn(self, fact: Fact) -> None:
        if fact.erased is not None:
            self.turns.update(fact.erased.turns)
            self._runs.update((run.first, run) for run in fact.erased.runs)
        if fact.imported is not None:
            self._runs.update((run.first, run) for run in fact.imported.parted)
        if fact.expired is not None:
            self.turns.update(fact.expired.turns)
        if fact.removed is not None:
            self._starts.setdefault(fact.removed.conversation, {})[fact.removed.follows] = fact.removed.first
            self.spent.setdefault(fact.removed.conversation, []).append(fact.removed.spent)

    def begin_segment(self) -> None:
        """No run goes on in another segment."""
        self._run = None

    def names(self, link: Link) -> bool:
        """Whether an erasure names this event. Events are asked about in order."""
        if self._run is None:
            run = self._runs.get(link.chain_digest)
            if run is None:
                return False
            self._run = (run.last, run.events)
        last, left = self._run
        self._run = None if link.chain_digest == last or left <= 1 else (last, left - 1)
        return True

    def starts(self, chain: bytes) -> dict[int, bytes]:
        """The numbers after which conversations with this id began that were deleted since, and with which digests."""
        return dict(self._starts.get(id_from_bytes(chain[1:]), {}))


def check(file: Iterable[bytes]) -> ExportCheck:
    """Checks the lines of a file, one after the other."""
    checked = ExportCheck()
    for raw in file:
        checked.take(raw)
    checked.finish()
    return checked
