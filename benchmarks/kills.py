"""Kills a program that writes to a store, again and again, and checks after each kill that nothing is torn.

    ./run python -m benchmarks.kills --kills 1000

The program commits turns at heads and elsewhere, journals steps, notes, forks, rewinds, keeps, deletes and collects in
several tasks at once, and reports each call as done only after it has returned. It is killed (SIGKILL) at a random
moment of what it announced; now and then another is killed right after it, while it opens what the first left behind or
makes a new store. The same file is carried from kill to kill. After each one the store must open without help;
everything reported is there; what was announced and not reported is there wholly or not at all; nothing else is;
`verify` finds no flaw; the turns that the program held are interrupted at once, and can be resumed (unless they stood
elsewhere than at the head), discarded or superseded; and a new turn commits.
"""

import argparse
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import IO, Self

import anyio
import msgspec
from msgspec import Struct

from benchmarks.progress import Progress
from forkpoint.errors import ForkpointError, NotFound
from forkpoint.events import Event, NewEvent, StateChange, Text, ToolCall, ToolResult, Usage
from forkpoint.history.anchors import Anchor
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import NewConversation, OpenTurn, Outcome, StoredConversation
from forkpoint.testing.samples import answers, says

WRITER = Path(__file__).parents[1] / "tests" / "store" / "support" / "restless_writer.py"
PATIENCE = 60.0  # seconds in which the program has to say something


class Torn(Exception):
    """Something is not as it was reported."""


class Announced(Struct, frozen=True):
    """A call that the program was about to make."""

    will: str
    number: int
    conversation: str = ""
    turn: str = ""
    made: str = ""  # the fork, or the branch that a rewind, a keep or a move sets aside
    at: str | None = None
    source: str = ""  # on whose path a move stands; the branch that is kept
    elsewhere: bool = False  # the turn stands elsewhere than at the head
    events: int = 0  # how many the turn has, or has journalled, once this is done
    outcome: Outcome = "running"
    paid: bool = False  # whether ending the turn reports usage


class Report(Struct, frozen=True):
    """A call that has returned, and the head or the anchor that it returned, if any."""

    did: int
    head: str | None = None
    anchor: Anchor | None = None


class Stretch(Struct, frozen=True):
    """A turn or a note on a path."""

    turn: str
    events: int
    note: bool = False


class Ledger:
    """What the store must hold, by what was reported."""

    def __init__(self) -> None:
        self.paths: dict[str, tuple[Stretch, ...]] = {}
        self.revisions: dict[str, int] = {}
        self.heads: dict[str, str] = {}  # as they were returned
        self.open: dict[str, str] = {}  # turn by conversation
        self.outcomes: dict[str, Outcome] = {}
        self.steps: dict[str, int] = {}
        self.tries: dict[str, str] = {}  # conversation by turn
        self.elsewhere: set[str] = set()  # turns that cannot be resumed
        self.families: dict[str, str] = {}
        self.spent: Counter[str] = Counter()  # by family, deleted conversations included
        self.anchors: list[Anchor] = []

    def enter(self, call: Announced, head: str | None = None) -> None:
        """Notes down that a call was done."""
        conversation = call.conversation
        match call.will:
            case "create":
                self.families[conversation] = conversation
                self._stands(conversation, (), None)
            case "begin":
                self.open[conversation] = call.turn
                self.outcomes[call.turn] = "running"
                self.steps[call.turn] = 0
                self.tries[call.turn] = conversation
                if call.elsewhere:
                    self.elsewhere.add(call.turn)
            case "journal":
                self.steps[call.turn] = call.events
            case "commit" | "note":
                path = (*self.paths[conversation], Stretch(call.turn, call.events, note=call.will == "note"))
                self._stands(conversation, path, head, moved=1)
                self.outcomes[call.turn] = "committed"
                self.open.pop(conversation, None)
                self.spent[self.families[conversation]] += call.will == "commit"
            case "move":
                base = self._upto(call.source, call.at) if call.at else ()
                old = self.paths[conversation]
                if base[: len(old)] != old:
                    self.families[call.made] = self.families[conversation]
                    self._stands(call.made, old, self.heads.get(conversation))
                self._stands(conversation, (*base, Stretch(call.turn, call.events)), head, moved=1)
                self.outcomes[call.turn] = "committed"
                self.open.pop(conversation, None)
                self.spent[self.families[conversation]] += 1
            case "end":
                self.outcomes[call.turn] = call.outcome
                if call.outcome != "awaiting_approval":
                    del self.open[conversation]
                    self.spent[self.families[conversation]] += call.paid
            case "resume":
                self.outcomes[call.turn] = "running"
            case "fork":
                self.families[call.made] = self.families[conversation]
                self._stands(call.made, self._upto(conversation, call.at), head)
            case "rewind":
                self.families[call.made] = self.families[conversation]
                self._stands(call.made, self.paths[conversation], self.heads.get(conversation))
                self._stands(conversation, self._upto(conversation, call.at), head, moved=1)
            case "keep":
                old, new = self.paths[conversation], self.paths[call.source]
                if new[: len(old)] != old:
                    self.families[call.made] = self.families[conversation]
                    self._stands(call.made, old, self.heads.get(conversation))
                self._stands(conversation, new, head, moved=1)
            case "delete":
                del self.paths[conversation]
                self._forget_unreachable()
            case "collect" | "anchor":
                pass
            case _:
                raise Torn(f"the program said something unknown: {call}")

    def expected_status(self, conversation: str) -> str:
        turn = self.open.get(conversation)
        if turn is None:
            return "idle"
        return "awaiting_approval" if self.outcomes[turn] == "awaiting_approval" else "interrupted"

    def _forget_unreachable(self) -> None:
        """Of what was deleted, the collector may remove the turns too."""
        kept = {stretch.turn for path in self.paths.values() for stretch in path}
        kept |= {turn for turn, of in self.tries.items() if of in self.paths and self.outcomes[turn] != "committed"}
        self.outcomes = {turn: outcome for turn, outcome in self.outcomes.items() if turn in kept}
        self.tries = {turn: of for turn, of in self.tries.items() if turn in kept}

    def _stands(self, conversation: str, path: tuple[Stretch, ...], head: str | None, *, moved: int = 0) -> None:
        self.paths[conversation] = path
        self.revisions[conversation] = self.revisions.get(conversation, 0) + moved
        if head is None:
            self.heads.pop(conversation, None)
        else:
            self.heads[conversation] = head

    def _upto(self, conversation: str, at: str | None) -> tuple[Stretch, ...]:
        path = self.paths[conversation]
        if at is None:
            return path
        return path[: [stretch.turn for stretch in path].index(at) + 1]


class Program:
    """The program, started; it waits for a word before it opens the store. Its errors are shown as they come."""

    def __init__(self, file: Path, *options: str) -> None:
        command = [sys.executable, str(WRITER), str(file), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def kill(self, *, after: int, moment: float) -> bytes:
        """Lets it go and kills it, a moment after so many announcements. Returns all that it said."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        said: list[bytes] = []
        try:
            process.stdin.write(b"go\n")
            process.stdin.flush()
            self._listen(process.stdout, said, after)
            time.sleep(moment)  # the kill is to come at any moment of what goes on now
        finally:
            process.kill()
            said.append(process.stdout.read())
            process.wait()
        if process.returncode != -signal.SIGKILL:
            raise Torn(f"the program ended by itself, with status {process.returncode}; its errors are above")
        return b"".join(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:  # closes the pipes too
            pass

    def _listen(self, stdout: IO[bytes], said: list[bytes], announcements: int) -> None:
        """Reads what the program says until it has announced so many calls, or is gone."""
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            announced = -1  # its first line only says that it opens the store
            while announced < announcements:
                if not ready.select(PATIENCE):
                    raise Torn(f"the program has hung for {PATIENCE:.0f} s, after {max(announced, 0)} announced calls")
                chunk = os.read(stdout.fileno(), 1 << 16)
                if not chunk:
                    return
                said.append(chunk)
                announced += chunk.count(b'{"will"') + chunk.count(b'{"opening"')


def kill_a_writer(program: Program, ledger: Ledger, chance: random.Random, seen: Counter[str]) -> list[Announced]:
    """Lets the program write, and kills it. Returns the calls that it had announced and not reported as done."""
    announcements = chance.randint(1, chance.choice([12, 60, 300]))
    said = program.kill(after=announcements, moment=chance.random() * 0.002)
    pending: dict[int, Announced] = {}
    for line in said.splitlines():
        if line.startswith(b'{"will"'):
            call = msgspec.json.decode(line, type=Announced)
            pending[call.number] = call
        elif line.startswith(b'{"did"'):
            report = msgspec.json.decode(line, type=Report)
            call = pending.pop(report.did)
            ledger.enter(call, report.head)
            if report.anchor is not None:
                ledger.anchors.append(report.anchor)
            seen[f"{call.will} reported"] += 1
    return list(pending.values())


def kill_an_opener(file: Path, chance: random.Random) -> None:
    """Lets the program open and close a store, which makes it if there is none, and kills it at that."""
    with Program(file, "--only-open") as program:
        program.kill(after=0, moment=chance.random() * 0.03)


async def use(file: Path) -> None:
    """Works with a store whose maker was killed: it is whole, or there is none yet."""
    async with await SqliteStore.open(file) as store:
        ledger = Ledger()
        inspection = Inspection(store, ledger, random.Random(0), Counter())
        await inspection.after([])
        id = new_id()
        await store.create(NewConversation(id=id))
        ledger.enter(Announced("create", 0, id))
        await inspection.after([])


class Inspection:
    """One look at the store after a kill: does it hold what the ledger says, and can work go on?"""

    def __init__(self, store: SqliteStore, ledger: Ledger, chance: random.Random, seen: Counter[str]) -> None:
        self._store = store
        self._ledger = ledger
        self._chance = chance
        self._seen = seen

    async def after(self, unreported: list[Announced]) -> None:
        for call in unreported:
            landed = await self._landed(call)
            self._seen["unreported and there" if landed else "unreported and not there"] += 1
            if landed:
                self._ledger.enter(call)
        await self._check()
        for conversation, turn in list(self._ledger.open.items()):
            await self._take_care(conversation, turn)
        if self._ledger.paths:
            await self._run_a_turn(self._chance.choice(list(self._ledger.paths)))
        await self._check()

    async def all_turns(self) -> None:
        """Every turn that was reported in what is not deleted, not only the latest."""
        for turn, outcome in self._ledger.outcomes.items():
            await self._check_turn(turn, outcome)

    async def _landed(self, call: Announced) -> bool:
        """Whether a call that was not reported has had its effect. What it did in part shows in `_check`."""
        store = self._store
        match call.will:
            case "create":
                return await self._exists(call.conversation)
            case "fork" | "rewind":
                return await self._exists(call.made)
            case "keep":
                before = self._ledger.revisions[call.conversation]
                return (await store.read(call.conversation)).revision > before
            case "delete":
                return not await self._exists(call.conversation)
            case "begin" | "note":
                return await self._outcome(call.turn) is not None
            case "commit" | "move":
                return await self._outcome(call.turn) == "committed"
            case "journal":
                return len(await store.steps(call.turn)) == call.events
            case "end":
                return await self._outcome(call.turn) == call.outcome
            case "resume":
                return await self._outcome(call.turn) == "interrupted"
            case _:
                return False

    async def _check(self) -> None:
        found = await self._store.verify(anchors=self._ledger.anchors)
        if not found.ok:
            raise Torn(f"verify found flaws: {[f'{flaw.where}: {flaw.what}' for flaw in found.flaws]}")
        listed = set(await self._all_conversations())
        if listed != set(self._ledger.paths):
            missing, extra = set(self._ledger.paths) - listed, listed - set(self._ledger.paths)
            raise Torn(f"conversations that were reported are missing: {missing}; that nobody announced: {extra}")
        for conversation, path in self._ledger.paths.items():
            await self._check_conversation(conversation, path)
            for stretch in path[-3:]:
                await self._check_turn(stretch.turn, "committed")
        for family in {self._ledger.families[conversation] for conversation in self._ledger.paths}:
            usage = await self._store.usage(family)
            if usage.calls != self._ledger.spent[family]:
                raise Torn(f"family {family} has paid for {self._ledger.spent[family]} turns, not for {usage.calls}")
        for turn in self._ledger.open.values():
            expected = self._ledger.outcomes[turn]
            await self._check_turn(turn, "interrupted" if expected == "running" else expected)
            steps = await self._store.steps(turn)
            if len(steps) != self._ledger.steps[turn]:
                raise Torn(f"turn {turn}: {self._ledger.steps[turn]} steps were journalled, {len(steps)} are there")

    async def _check_conversation(self, id: str, path: tuple[Stretch, ...]) -> None:
        record = await self._store.read(id)
        events = await self._store.events(id)
        wanted = [f"{stretch.turn}:{place}" for stretch in path for place in range(stretch.events)]
        found = [_label(event) for event in events]
        if found != wanted:
            raise Torn(f"conversation {id} should have the events {wanted}, and has {found}")
        if any(event.turn != _label(event).partition(":")[0] for event in events):
            raise Torn(f"conversation {id} has events under another turn than the one that wrote them")
        _check_pairing(id, events)
        head = str(events[-1].id) if events else None
        ledger = self._ledger
        notes = [stretch.turn for stretch in path if stretch.note]
        self._compare(id, "revision", ledger.revisions[id], record.revision)
        self._compare(id, "head", head, None if record.head.position is None else str(record.head.position))
        self._compare(id, "head that was returned", ledger.heads.get(id, head), head)
        self._compare(id, "number of paid turns", len(path) - len(notes), record.head.totals.calls)
        self._compare(id, "status", ledger.expected_status(id), record.status)
        self._compare(id, "open turn", ledger.open.get(id), record.open_turn)
        state = await self._store.state(id)
        self._compare(id, "state", f'"{notes[-1]}"' if notes else None, state.get("note"))

    async def _check_turn(self, turn: str, outcome: Outcome) -> None:
        found = await self._outcome(turn)
        if found != outcome:
            raise Torn(f"turn {turn} was reported as {outcome} and is {found}")

    async def _take_care(self, conversation: str, turn: str) -> None:
        """Ends a turn that the killed program held, in one of the ways there are, and runs another one."""
        resumable = [] if turn in self._ledger.elsewhere else ["resumed"]
        way = self._chance.choice([*resumable, "discarded", "superseded"])
        self._seen[f"open turn {way}"] += 1
        match way:
            case "resumed":
                await self._commit(await self._store.resume(turn))
                return
            case "discarded":
                await self._store.discard(turn)
                self._closed(conversation, turn)
                await self._run_a_turn(conversation)
            case _:
                await self._run_a_turn(conversation, supersede=True)
        await self._check_turn(turn, "cancelled")

    async def _run_a_turn(self, conversation: str, *, supersede: bool = False) -> None:
        turn = new_id()
        held = await self._store.begin(conversation, turn, supersede=supersede)
        assert isinstance(held, OpenTurn)
        if supersede:
            self._closed(conversation, self._ledger.open[conversation])
        self._ledger.enter(Announced("begin", 0, conversation, turn))
        await self._commit(held)

    async def _commit(self, held: OpenTurn) -> None:
        """Answers what is open as unknown, as a program would that takes a dead one's turn over, and commits."""
        if held.staged != self._ledger.steps[held.id]:
            raise Torn(f"turn {held.id} had {self._ledger.steps[held.id]} steps and was resumed with {held.staged}")
        labels = (f"{held.id}:{place}" for place in range(held.staged, 1 << 30))
        events: list[NewEvent] = []
        if not held.staged:
            events.append(says(next(labels)))
        events.extend(
            NewEvent(ToolResult(call, "look", (Text(next(labels)),), status="unknown")) for call in held.calls.ours
        )
        events.append(answers(next(labels)))
        done = await self._store.commit(held, events, usage=Usage(calls=1))
        size = held.staged + len(events)
        self._ledger.enter(Announced("commit", 0, held.conversation, held.id, events=size), str(done.head.position))

    def _closed(self, conversation: str, turn: str) -> None:
        self._ledger.enter(Announced("end", 0, conversation, turn, outcome="cancelled"))

    async def _exists(self, conversation: str) -> bool:
        try:
            await self._store.read(conversation)
        except NotFound:
            return False
        return True

    async def _outcome(self, turn: str) -> Outcome | None:
        try:
            return (await self._store.turn(turn)).outcome
        except NotFound:
            return None

    async def _all_conversations(self) -> list[str]:
        found: list[StoredConversation] = []
        cursor = None
        while True:
            page = await self._store.conversations(cursor=cursor, limit=1000)
            found.extend(page.items)
            cursor = page.next
            if cursor is None:
                return [record.id for record in found]

    def _compare(self, conversation: str, what: str, expected: object, found: object) -> None:
        if expected != found:
            raise Torn(f"conversation {conversation}: its {what} should be {expected!r} and is {found!r}")


def _label(event: Event) -> str:
    match event.body:
        case StateChange():
            return f"{event.turn}:0"
        case ToolCall(call_id=label):
            return label
        case body:
            text = getattr(body, "parts", (Text("?"),))[0].text
            return str(text).partition(" ")[0]


def _check_pairing(conversation: str, events: list[Event]) -> None:
    """Each call has its result in order before its turn ends: asked of the events themselves, not of `verify`."""
    for turn, written in groupby(events, key=lambda event: event.turn):
        waiting: list[str] = []
        for event in written:
            if isinstance(event.body, ToolCall):
                waiting.append(event.body.call_id)
            elif isinstance(event.body, ToolResult) and (not waiting or waiting.pop(0) != event.body.call_id):
                raise Torn(f"conversation {conversation}: {event.id} answers {event.body.call_id}, which is not open")
        if waiting:
            raise Torn(f"conversation {conversation}: {waiting} have no result when turn {turn} ends")


def run(kills: int, seed: int, folder: Path, progress: Progress) -> Counter[str]:
    """Kills so often, with one file. Returns how often what was seen; raises `Torn`."""
    chance = random.Random(seed)
    file = folder / "killed.db"
    ledger = Ledger()
    seen: Counter[str] = Counter()

    async def inspect(unreported: list[Announced], thoroughly: bool) -> None:
        async with await SqliteStore.open(file) as store:
            inspection = Inspection(store, ledger, chance, seen)
            await inspection.after(unreported)
            if thoroughly:
                await inspection.all_turns()

    def start() -> Program:
        return Program(file, "--seed", str(chance.randrange(1 << 30)))

    program = start()
    try:
        for kill in range(1, kills + 1):
            unreported: list[Announced] = []
            try:
                with program:
                    unreported = kill_a_writer(program, ledger, chance, seen)
                if chance.random() < 0.2:
                    kill_an_opener(file, chance)
                    seen["killed again while opening"] += 1
                if chance.random() < 0.1:
                    kill_an_opener(folder / f"made-{kill}.db", chance)
                    anyio.run(use, folder / f"made-{kill}.db")
                    seen["killed while making a store"] += 1
                if kill < kills:
                    program = start()  # it gets ready while the store is looked at
                anyio.run(inspect, unreported, kill == kills)
            except Exception as error:
                error.add_note(f"That was after kill {kill} with --seed {seed}; not reported were: {unreported}")
                raise
            progress.part("kills", kill, kills)
    finally:
        with program:  # one that was started and not used any more
            pass
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="how often to kill (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="what is written, and roughly when it is killed")
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where to make the store (default: a folder that goes when all is well)",
    )
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="forkpoint-kills-"))
    progress = Progress(quiet=given.quiet)
    progress.say(f"{given.kills:,} kills, --seed {seed}, in {folder}")
    try:
        seen = run(given.kills, seed, folder, progress)
    except (Torn, ForkpointError) as error:
        what = f"{type(error).__name__}: {error}"
        print(what, *error.__notes__, f"The store is kept in {folder}.", sep="\n", file=sys.stderr)
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    print(f"{given.kills:,} kills, and nothing was lost, torn or made up. Seen:")
    for what, times in sorted(seen.items()):
        print(f"  {times:7,}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
