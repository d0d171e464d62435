"""A turn with hooks, skills, an MCP server, a secret and a condensation that is struck, and what must hold afterwards.

`working_world.py` has the turn. It is struck once: by the disk at one statement, by a cancellation at one await. Then
the file is read through a connection of its own, somebody goes on with the turn or without it, in this process or in
another, and says something more. `working_kills.py` kills it. `test_working_faults.py` tries a sample; this tries them
all, which takes some minutes::

    python -m tests.conversation.faults.working [disk] [cancel] [kill]
"""

import asyncio
import logging
import os
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, get_args

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace
from tests.conversation.faults.disk import FLAWS
from tests.conversation.faults.family import CANCELLED, Blow, Start, Verdict
from tests.conversation.faults.family import Struck as StruckInFamily
from tests.conversation.faults.judge import Broken, check, check_pairing
from tests.conversation.faults.points import Point
from tests.conversation.faults.working_world import ANSWER, CALLS, GO, HELLO, KEY, NEXT, NOTES, TURNS, World

from forkpoint.agent.mcp import end_servers
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import Continuation, Draft, NewTurn
from forkpoint.backend.settings import Settings
from forkpoint.conversation import Turn
from forkpoint.engine.engine import Engine
from forkpoint.engine.turns.reader import read_turn
from forkpoint.errors import ForkpointError, NotFound, OutcomeUnknown, TurnCancelled, TurnFailed
from forkpoint.events import Condensation, Event, HookRun, SkillActivated, ToolCall, ToolResult, Usage
from forkpoint.history.state import State
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import StoredConversation

Way: TypeAlias = Literal["resume", "retry", "supersede", "discard"]
"""How somebody goes on: with the turn, with another try of it, with a try in its place, or without it."""

WAYS: tuple[Way, ...] = get_args(Way)
SKILLS = ["parcels", "labels"]


class Reference(Struct, frozen=True):
    """What the model is asked by the turn after the struck one where nothing goes wrong."""

    condensed: bytes
    plain: bytes  # if nobody writes a summary
    without: bytes  # if there never was the turn


class Found(Struct, frozen=True):
    """What another connection reads in the file."""

    record: StoredConversation
    turn: Turn | None  # the struck one
    events: Sequence[Event]
    state: State
    counted: Usage

    @property
    def is_condensed(self) -> bool:
        return any(isinstance(event.body, Condensation) for event in self.events)

    @property
    def stood(self) -> str:
        outcome = "never begun" if self.turn is None else self.turn.outcome
        return f"{outcome}, condensed" if self.is_condensed else outcome


async def make_start(folder: Path) -> Start:
    """A folder with a conversation that has had some small talk."""
    os.makedirs(folder)
    world = World(folder)
    async with await SqliteStore.open(world.file) as store:
        backend = Engine(store, owns_store=False)
        draft = Draft(id=new_id(), name=None, settings=Settings.of(world.agent, None))
        for number in range(TURNS):
            said = (as_message(HELLO),)
            await backend.turns.run(
                draft.id, world.agent, NewTurn(given=said, draft=None if number else draft), world.told
            )
        await backend.close()
        found = await look(store, draft.id)
        check(not found.is_condensed, f"small talk has {len(found.events)} events, and is condensed")
    world.close()
    await end_servers()
    return Start(folder, draft.id)


async def make_reference(start: Start, folder: Path) -> Reference:
    asked: list[bytes] = []
    for number, (is_silent, goes) in enumerate([(False, True), (True, True), (False, False)]):
        start.copy(folder / str(number))
        world = World(folder / str(number))
        world.is_silent = is_silent
        async with await SqliteStore.open(world.file) as store:
            backend = Engine(store, owns_store=False)
            if goes:
                await backend.turns.run(start.parent, world.agent, NewTurn(given=(as_message(GO),)), world.told)
                found = await look(store, start.parent)
                check(found.is_condensed != is_silent, f"where nothing goes wrong it is {found.stood}")
                check(all(call.status == "done" for call in found.turn.calls) if found.turn else False, "it fails")
            await backend.turns.run(start.parent, world.agent, NewTurn(given=(as_message(NEXT),)), world.told)
            await backend.close()
        asked += [body for words, body in world.asked if words == NEXT]
        world.close()
        await end_servers()
    return Reference(*asked)


async def look(store: SqliteStore, id: str) -> Found:
    verified = await store.verify()
    check(verified.ok, f"verify finds flaws: {verified.flaws}")
    record = await store.read(id)
    turns = [one for one in (await store.turns(id, limit=1000)).items if one.input is not None and GO in one.input]
    newest = max(turns, key=lambda one: (one.outcome == "committed", one.started), default=None)
    turn = None if newest is None else await read_turn(store, newest.id)
    events = await store.events(id)
    check_pairing(events)
    return Found(record, turn, events, await store.state(id), await store.usage(record.family))


class Judge:
    """Checks what is promised of one run, and goes on with it."""

    def __init__(self, world: World, id: str, reference: Reference) -> None:
        self._world = world
        self._id = id
        self._reference = reference

    # What must hold whenever somebody looks.

    def check_whole(self, found: Found) -> None:
        turn = found.turn
        if turn is None or turn.outcome != "committed":
            check(not found.is_condensed, f"it is {found.stood}")
            inside = [event for event in found.events if turn is not None and event.turn == turn.id]
            check(not inside, f"it is {found.stood}, and history has {inside}")
            check("looked" not in dict(found.state.values), f"it is {found.stood}, and what its tool set is in force")
            check(not found.state.skills, f"it is {found.stood}, and its skills are active")
        else:
            self._check_committed(turn, found)
        self._check_world(turn)
        self._check_secret(found)

    def _check_committed(self, turn: Turn, found: Found) -> None:
        check(turn.text == ANSWER, f"it committed with the answer {turn.text!r}")
        statuses = {call.id: call.status for call in turn.calls}
        check(tuple(statuses) == CALLS, f"it committed with the calls {statuses}")
        bodies = [event.body for event in turn.events]
        check(
            [body.name for body in bodies if isinstance(body, SkillActivated)]
            == [name for name in SKILLS if name != "labels" or statuses[CALLS[0]] == "done"],
            f"it committed with the skills {found.state.skills}",
        )
        check(
            ("looked" in dict(found.state.values)) == (statuses[CALLS[0]] == "done"),
            "its state is not what its call says",
        )
        check_hooks(turn)
        after = [event.body for event in found.events[_end_of(turn, found.events) :]]
        if found.is_condensed:
            note, *rest = after
            check(isinstance(note, Condensation) and note.summary == NOTES, f"the note has {note}")
            check(not rest or turn.id != found.events[-1].turn, f"behind the note stands {rest}")
            check(found.state.kept_from > 1, "it is condensed, and everything is kept")

    def _check_world(self, turn: Turn | None) -> None:
        """Nothing was started that the turn does not know of, and nothing twice."""
        did = Counter(self._world.lines())
        known = {call.id: call.status for call in turn.calls} if turn is not None else {}
        for id in CALLS:
            starts = did[f"starts {id}"]
            check(not starts or id in known or (turn is not None and turn.retry_of is not None), f"{id} is not known")
            if known.get(id) == "done":
                check(did[f"ends {id}"] > 0, f"{id} is done, and has not ended")
        if known.get(CALLS[1]) == "done":
            check(did[f"hook guard {CALLS[1]}"] > 0, "the server was called, and nobody had asked the hook")

    def _check_secret(self, found: Found) -> None:
        check(not self._world.leaks, f"the secret was told: {self._world.leaks}")
        words = msgspec.json.encode([found.events, [] if found.turn is None else found.turn.events])
        check(KEY.encode() not in words, "the secret is in an event")
        for file in self._world.folder.iterdir():
            if file.is_file():
                check(KEY.encode() not in file.read_bytes(), f"the secret is in {file.name}")

    def check_usage(self, found: Found, least: int | None = None) -> None:
        """What was paid for is counted once; ``least`` if something that was under way may have been lost."""
        did = Counter(self._world.lines())
        paid, counted = did["answered"] + did["summary"], found.counted.calls
        least = paid if least is None else least
        check(least <= counted <= paid, f"{paid} answers were paid for, {least} at least, and {counted} are counted")
        check(found.counted.input == counted * 100, f"counted are {found.counted}")

    # Going on.

    async def go_on(self, backend: Engine, store: SqliteStore, way: Way) -> Turn | None:
        """Goes on in the way, and with what the user says next. Gives the turn, if there is one in the end."""
        world, before = self._world, await look(store, self._id)
        did, turn = world.lines(), before.turn
        agent, tell, said = world.agent, world.told, (as_message(GO),)
        done: Turn | None
        if turn is not None and turn.outcome == "committed":
            done = turn
        elif way == "discard":
            done = None
            if before.record.open_turn is not None:
                ended = await backend.turns.discard(self._id, before.record.open_turn)
                check(ended.outcome == "cancelled", f"it was discarded, and is {ended.outcome}")
        elif turn is None:
            done = await backend.turns.run(self._id, agent, NewTurn(given=said), tell)
        elif way == "resume":
            done = await backend.turns.resume(self._id, turn.id, agent, Continuation(), tell)
            check(done.id == turn.id, "another turn was resumed")
            self._check_not_again(turn, done, did)
        else:
            if before.record.open_turn is not None and way == "retry":
                await backend.turns.discard(self._id, before.record.open_turn)
            supersede = way == "supersede"
            done = await backend.turns.run(
                self._id, agent, NewTurn(given=said, retry_of=turn.id, supersede=supersede), tell
            )
            check([call.status for call in done.calls] == ["done", "done"], f"a new try has {done.calls}")
        found = await look(store, self._id)
        self.check_whole(found)
        if done is not None:
            check(done.outcome == "committed" and found.turn == done, f"it went on, and is {done.outcome}")
            if turn is None or turn.outcome != "committed":
                check(found.is_condensed, "it went on to its end, and is not condensed")
        await backend.turns.run(self._id, agent, NewTurn(given=(as_message(NEXT),)), tell)
        self._check_asked(found, done)
        return done

    def _check_not_again(self, before: Turn, done: Turn, did: Sequence[str]) -> None:
        """What is recorded in a turn is not run again when it is resumed, and neither is what may have run."""
        since = Counter(self._world.lines()[len(did) :])
        for hook, call in _hooks(before):
            if hook != "sign":  # which is asked about each answer
                check(not since[f"hook {hook} {call}"], f"the hook {hook} is recorded for {call}, and ran again")
        signs = _hooks(before)["sign", "-"]
        check(since["hook sign -"] <= 2 - signs, "the hook sign ran again")
        known = {call.id: call.status for call in before.calls}
        whole = Counter(self._world.lines())
        for one in done.calls:
            check(one.status == known.get(one.id, "done"), f"{one.id} was {known.get(one.id)} and is {one.status}")
            check(whole[f"starts {one.id}"] <= 1, f"{one.id} was run again")

    def _check_asked(self, found: Found, done: Turn | None) -> None:
        body = next(body for words, body in reversed(self._world.asked) if words == NEXT)
        if done is None:
            check(body == self._reference.without, f"the next turn asks otherwise than without the turn: {body!r}")
        elif all(call.status == "done" for call in done.calls):
            wanted = self._reference.condensed if found.is_condensed else self._reference.plain
            check(body == wanted, f"the next turn asks otherwise than it should: {body!r} and not {wanted!r}")
        else:
            check(KEY.encode() not in body and (NOTES.encode() in body) == found.is_condensed, f"it asks {body!r}")


def check_hooks(turn: Turn) -> None:
    """Each hook is recorded once for what it was to be asked about: before the tool's result, or behind it."""
    ran = _hooks(turn)
    done = [call.id for call in turn.calls if call.status == "done"]
    wanted = Counter({("begin", "-"): 1, ("sign", "-"): 2, **{("stamp", id): 1 for id in done}})
    if ran["guard", CALLS[1]] or CALLS[1] in done:
        wanted["guard", CALLS[1]] = 1
    check(ran == wanted, f"it committed with the hooks {dict(ran)}, and not {dict(wanted)}")
    places: dict[tuple[str, str | None], int] = {}
    for place, body in enumerate([event.body for event in turn.events]):
        match body:
            case HookRun(hook=hook, call_id=id):
                places[hook, id] = place
            case ToolResult(call_id=id):
                places["result", id] = place
            case ToolCall(call_id=id):
                places["call", id] = place
            case _:
                pass
    for hook, id in places:
        if hook == "guard":
            check(places["call", id] < places[hook, id], "a hook is recorded before its call")
            check(CALLS[1] not in done or places[hook, id] < places["result", id], "a hook came too late")
        if hook == "stamp":
            check(places["result", id] < places[hook, id], "a hook of a result is recorded before it")


def _hooks(turn: Turn) -> Counter[tuple[str, str]]:
    runs = [event.body for event in turn.events if isinstance(event.body, HookRun)]
    return Counter((run.hook, run.call_id or "-") for run in runs)


def _end_of(turn: Turn, events: Sequence[Event]) -> int:
    return max(place for place, event in enumerate(events, start=1) if event.turn == turn.id)


class Struck(StruckInFamily):
    """The turn, struck, and what its caller was told."""

    def __init__(self, start: Start, folder: Path, blow: Blow | None, reference: Reference) -> None:
        super().__init__(start, folder, blow)
        self.family: Any = World(folder)
        self._before = self.family.lines().count("answered")
        self._judge = Judge(self.family, start.parent, reference)

    async def judged(self) -> str:
        try:
            stood = await super().judged()
            async with await SqliteStore.open(self.family.file) as store:  # when all is closed, all is counted
                found = await look(store, self.parent)
                self._judge.check_whole(found) if self.blow is None else None
                check(found.record.status == "idle", f"at the end it is {found.record.status}")
                is_cancelled = self.blow is not None and self.blow.kind == "cancel"  # maybe a summary, half-way
                noted = sum(isinstance(event.body, Condensation) for event in found.events)
                least = self._before + self.family.paid.calls + noted
                self._judge.check_usage(found, least if is_cancelled else None)
            return stood
        finally:
            self.family.close()
            await end_servers()

    async def _run(self, backend: Engine) -> None:
        with self._scope:
            said = (as_message(GO),)
            self.turn = await backend.turns.run(self.parent, self.family.agent, NewTurn(given=said), self.family.told)

    async def _compare(self, store: SqliteStore) -> str:
        """What another connection reads, beside what the caller was told."""
        found = await look(store, self.parent)
        stood = "never begun" if found.turn is None else found.turn.outcome
        match self.error:
            case None if self.turn is not None:
                check(stood == self.turn.outcome == "committed", f"it returned {self.turn.outcome}, and is {stood}")
                check(self.turn == found.turn, "it returned another turn than there is")
            case TurnCancelled():
                check(stood == "cancelled", f"it was cancelled, and is {stood}")
            case TurnFailed():
                check(stood == "failed" or (self._lasting and stood == "running"), f"it failed, and is {stood}")
            case None | asyncio.CancelledError():  # which says nothing of the turn
                check(stood in ("cancelled", "never begun", "committed"), f"it was cancelled, and is {stood}")
            case OutcomeUnknown():
                check(stood in ("committed", "failed", "never begun"), f"it is settled, and is {stood}")
            case ForkpointError():
                check(stood == "never begun", f"it was refused ({self.error}), and is {stood}")
            case error:
                raise Broken(f"it raised {error!r}")
        check(found.record.status == "idle" or self._lasting, f"the conversation is {found.record.status}")
        self._judge.check_whole(found)
        return found.stood

    async def _finish(self, backend: Engine, store: SqliteStore, way: Any) -> None:
        await backend.turns.unended.end(self.parent)
        with suppress(NotFound):
            await self._judge.go_on(backend, store, way)


class Matrix:
    """All blows at all points that the turn passes where nothing goes wrong."""

    def __init__(self, folder: Path, start: Start, points: Sequence[Point], reference: Reference) -> None:
        self.reference = reference
        self.start = start
        self._folder = folder
        self.points = points
        self._runs = 0

    @classmethod
    async def make(cls, folder: Path) -> Self:
        start = await make_start(folder / "start")
        reference = await make_reference(start, folder / "reference")
        whole = Struck(start, folder / "whole", None, reference)
        await whole.judged()
        return cls(folder, start, whole.points, reference)

    def blows(self, kind: str) -> list[Blow]:
        """All of a kind, in an order of which any beginning is a fair sample. How somebody goes on is part of it."""
        found: list[Blow] = []
        for point in self.points:
            if kind == "disk" and point.kind == "statement":
                found += [
                    Blow("disk", how, point)
                    for how, flaw in FLAWS.items()
                    if point.name == "COMMIT" or not flaw.commits
                ]
            elif kind == "cancel" and point.kind != "file":
                found += [Blow("cancel", how, point) for how in CANCELLED]
        return [_with_a_way(blow) for blow in sorted(found, key=_number)]

    async def try_one(self, blow: Blow) -> Verdict:
        self._runs += 1
        folder = self._folder / f"run {self._runs}"
        struck = Struck(self.start, folder, blow, self.reference)
        try:
            stood = await struck.judged()
        except Exception as error:
            problem = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            return Verdict(blow, struck.hit, problem=f"{problem} (the caller heard {type(struck.error).__name__})")
        shutil.rmtree(folder)
        return Verdict(blow, struck.hit, stood)


def _with_a_way(blow: Blow) -> Blow:
    number = _number(blow)
    way: Any = WAYS[number % len(WAYS)]
    return replace(blow, way=way, elsewhere=number // len(WAYS) % 2 == 1)


def _number(blow: Blow) -> int:
    """A number that is always the same for a blow, and says nothing about it."""
    return zlib.crc32(f"{blow.kind} {blow.how} {blow.at.name} {blow.at.nth}".encode())


async def main() -> int:
    """Tries all of it, or what the arguments name, and says what was not handled."""
    from tests.conversation.faults.working_kills import killing  # which needs all that stands here

    logging.getLogger("forkpoint").setLevel(logging.ERROR)
    wanted = sys.argv[1:] or ["disk", "cancel", "kill"]
    stood: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        matrix = await Matrix.make(Path(folder))
        for kind in ("disk", "cancel"):
            for blow in matrix.blows(kind) if kind in wanted else ():
                stood[_said(kind, await matrix.try_one(blow))] += 1
        if "kill" in wanted:
            with killing(matrix.start, matrix.reference, Path(folder)) as program:
                for kill in program.find():
                    stood[_said("kill", await program.try_one(kill))] += 1
    for what, times in sorted(stood.items()):
        print(f"  {times:7,}  {what}")
    problems = sum(times for what, times in stood.items() if what.endswith("not handled"))
    print(f"{stood.total():,} tried, {problems:,} not handled")
    return 1 if problems else 0


def _said(kind: str, verdict: Any) -> str:
    """What came of it in short; if it was not handled, in full at once."""
    if verdict.problem is None:
        return f"{kind}: {verdict.stood}"
    print(verdict, flush=True)
    return f"{kind}: not handled"


if __name__ == "__main__":
    sys.exit(anyio.run(main))
