"""What must hold for a parent and its sub-agents after a kill, and after somebody in another process went on."""

import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from tests.conversation.faults.judge import Broken, check, check_pairing
from tests.conversation.faults.scenario import requests
from tests.conversation.team_faults.killing import ACTS, Act, Kill, Order, Program
from tests.conversation.team_faults.scenario import ASKED, GO, NEXT, TASKS, Stage, World, make_start

from forkpoint import AsyncConversation
from forkpoint.conversation import Turn
from forkpoint.engine.turns.reader import read_turn
from forkpoint.events import Event, SubAgentFinished, SubAgentSpawned, Usage, UserMessage
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import StoredConversation

Way: TypeAlias = Literal["resume", "discard", "supersede"]
"""How somebody goes on: with the parent's turn, or without it."""

WAYS: tuple[Way, ...] = get_args(Way)


class Reference(Struct, frozen=True):
    """How it goes where nobody is killed."""

    answer: str
    next: bytes  # what the model is asked by the turn after it
    without: bytes  # by that turn, if there had been none


class Verdict(Struct, frozen=True):
    """What came of one kill."""

    kill: Kill
    way: Way
    killed: bool  # False: this time the turn did not come to that point, and went through
    stood: str = ""  # how the parent's turn stood, and how many sub-agents there were
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.kill}; then {self.way}: {self.problem or 'all is well'}"


class _Child(Struct, frozen=True):
    record: StoredConversation
    call: str
    turn: Turn | None  # the one that it was set to work in


class _Found(Struct, frozen=True):
    """What another program reads in the file."""

    parent: StoredConversation
    turn: Turn | None  # the struck one
    events: Sequence[Event]
    children: Sequence[_Child]
    usage: Usage  # of the family


class Killing:
    """All kills there are, and what is needed to try them."""

    def __init__(self, folder: Path, program: Program) -> None:
        self._folder = folder
        self._program = program
        self._starts: dict[Act, tuple[Path, str]] = {}
        self.reference: Reference
        self._runs = 0

    async def find(self, acts: Sequence[Act] = ACTS) -> list[Kill]:
        """Does what can be killed, without a kill. Gives all that can happen to it, the fairest sample first."""
        start = self._folder / "start"
        self._starts["run"] = start, await make_start(start)
        self.reference = await self._make_reference()
        kills = self._program.find(self._order("run"))
        for act in acts:
            if act == "resume spawning":
                self._starts[act] = await self._half_done(kills, "spawn", children=1)
            elif act != "run":
                self._starts[act] = await self._half_done(kills, "wait", children=2)
        found = {act: kills if act == "run" else self._program.find(self._order(act)) for act in acts}
        return _fairly([kill for kills in found.values() for kill in kills])

    async def try_one(self, kill: Kill, turn: int = 0) -> Verdict:
        """Kills, judges and goes on, in this process. Which way depends on the kill and on how often it was tried."""
        way = WAYS[(_number(kill) // 7 + turn) % len(WAYS)]
        order, killed = self._order(kill.act, kill), False
        try:
            killed = self._program.run(order)
            stood = await judge(order, self.reference, way)
        except Exception as error:
            problem = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            return Verdict(kill, way, killed, problem=f"{problem} ({order.folder})")
        shutil.rmtree(order.folder)
        return Verdict(kill, way, killed, stood)

    async def _half_done(self, kills: Sequence[Kill], stage: Stage, *, children: int) -> tuple[Path, str]:
        """What a kill at a stage leaves, when that is so many sub-agents, and one at least with nothing committed."""
        at_stage = [kill for kill in kills if kill.stage == stage]
        for kill in sorted(at_stage, key=lambda kill: kill.point.name != "COMMIT"):
            order, killed = self.killed(kill)
            if killed:
                judging = _Judging(order, self.reference)
                found = await judging.look()
                judging.close()
                if len(found.children) == children and any(_outcome(one) != "committed" for one in found.children):
                    return Path(order.folder), order.conversation
        raise Broken(f"no kill at the stage {stage} leaves {children} sub-agents, one of them at work")

    def killed(self, kill: Kill) -> tuple[Order, bool]:
        """Runs what is to be killed. Gives where, and whether it was."""
        order = self._order(kill.act, kill)
        return order, self._program.run(order)

    def _order(self, act: Act, kill: Kill | None = None) -> Order:
        self._runs += 1
        folder, (start, conversation) = self._folder / f"run {self._runs}", self._starts[act]
        shutil.copytree(start, folder)
        return Order(str(folder), conversation, act, kill)

    async def _make_reference(self) -> Reference:
        asked: list[bytes] = []
        answer = ""
        for goes in (True, False):
            order = self._order("run")
            world = World(Path(order.folder), "run")
            async with await SqliteStore.open(world.file) as store, await world.open(store, order.conversation) as one:
                answer = (await one.run(GO)).text if goes else answer
                world.log.phase = "next"
                await one.run(NEXT)
            asked += requests(world.log.read(), "next")
            check(not goes or len(requests(world.log.read(), "run")) == ASKED, "the turn asks otherwise than it should")
            world.log.close()
        with_it, without = asked
        return Reference(answer, with_it, without)


@contextmanager
def opened(folder: Path) -> Iterator[Killing]:
    with Program() as program:
        yield Killing(folder, program)


async def judge(order: Order, reference: Reference, way: Way) -> str:
    """Checks all that is promised, and goes on in this process. Gives how it stood. Raises `Broken`."""
    judging = _Judging(order, reference)
    try:
        return await judging.judge(way)
    finally:
        judging.close()


class _Judging:
    def __init__(self, order: Order, reference: Reference) -> None:
        self._id = order.conversation
        self._act = order.act
        self._world = World(Path(order.folder), "after")
        self._reference = reference

    def close(self) -> None:
        self._world.log.close()

    async def judge(self, way: Way) -> str:
        found = await self.look()
        self._check_found(found)
        world = self._world
        async with await SqliteStore.open(world.file) as store, await world.open(store, self._id) as parent:
            done = await self._go_on(parent, found, way)
            world.log.phase = "next"
            if not any(
                isinstance(event.body, UserMessage) and NEXT in str(event.body) for event in await parent.events()
            ):
                await parent.run(NEXT, supersede=way == "supersede")
        after = await self.look()
        if done is not None:
            self._check_done(found, done, after)
        else:
            self._check_left(found, after)
        wanted = self._reference.without if done is None else self._reference.next
        last = [bytes(entry.body) for entry in world.log.read() if entry.what == "asked" and entry.call == NEXT][-1:]
        check(last == [wanted], "the next turn asks otherwise than it should")
        self._check_usage(after)
        stood = "not begun" if found.turn is None else found.turn.outcome
        return f"{stood}, with {len(found.children)} sub-agents"

    async def look(self) -> _Found:
        async with await SqliteStore.open(self._world.file) as store:
            verified = await store.verify()
            check(verified.ok, f"verify finds flaws: {verified.flaws}")
            parent = await store.read(self._id)
            turns = (await store.turns(parent.id, limit=1000)).items
            own = [turn for turn in turns if turn.input is not None and GO in turn.input]
            check(len(own) <= 1, f"there are {len(own)} turns where there was one")
            children = [
                await _child(store, record)
                for record in (await store.conversations(limit=1000)).items
                if record.id != parent.id
            ]
            events = await store.events(parent.id)
            check_pairing(events)
            turn = await read_turn(store, own[0].id) if own else None
            return _Found(parent, turn, events, children, await store.usage(parent.family))

    def _check_found(self, found: _Found) -> None:
        outcome = None if found.turn is None else found.turn.outcome
        ends = {"committed", "cancelled"} if self._act in ("discard", "supersede") else {"committed"}
        check(outcome in {None, "interrupted"} | ends, f"the process died, and the parent's turn is {outcome}")
        said = [event for event in found.events if event.turn == (found.turn.id if found.turn else "")]
        if outcome != "committed":
            check(not said, "something of a turn that did not commit is in the parent's history")
        else:
            check(len(found.children) == len(TASKS), "it committed without its sub-agents")
            check(all(_outcome(one) == "committed" for one in found.children), "it committed before its sub-agents")
        self._check_children(found)
        for one in found.children:
            check(_outcome(one) in {None, "interrupted"} | ends, f"a sub-agent's turn is {_outcome(one)}")

    def _check_children(self, found: _Found) -> None:
        calls = Counter(one.call for one in found.children)
        check(set(calls.values()) <= {1}, f"a call has made several sub-agents: {calls}")
        for one in found.children:
            lineage = one.record.lineage
            check(found.turn is not None, "there is a sub-agent of a turn that never began")
            check(lineage.turn == (found.turn.id if found.turn else ""), "a sub-agent is of another turn")
            check((lineage.kind, lineage.source) == ("sub_agent", self._id), f"a sub-agent has the lineage {lineage}")
            if one.turn is not None and one.turn.outcome == "committed":
                check(one.turn.text == f"I saw {TASKS[one.call]}.", f"a sub-agent committed in part: {one.turn.text}")
        looked = Counter(entry.call for entry in self._world.log.read() if entry.what == "starts")
        check(all(times == 1 for times in looked.values()), f"a tool that must not run twice did: {looked}")

    async def _go_on(self, parent: AsyncConversation, found: _Found, way: Way) -> Turn | None:
        """Goes on in the way. Gives the parent's turn if there is one in the end."""
        if found.turn is None:
            return await parent.run(GO)
        if found.turn.outcome == "committed":
            return found.turn
        if found.turn.outcome == "cancelled":
            if found.parent.status == "interrupted":
                await parent.discard()  # what had begun in its place
            return None
        if way == "resume":
            return await parent.resume()
        if way == "discard":
            discarded = await parent.discard()
            check(discarded.outcome == "cancelled", f"it was discarded, and is {discarded.outcome}")
        return None

    def _check_done(self, before: _Found, done: Turn, after: _Found) -> None:
        check(done.outcome == "committed", f"it went on, and is {done.outcome}")
        check(done.text == self._reference.answer, f"it has another answer than where nobody was killed: {done.text}")
        self._check_children(after)
        check({one.call for one in after.children} == set(TASKS), f"there are {len(after.children)} sub-agents")
        known = {one.record.id: one for one in before.children}
        check(known.keys() <= {one.record.id for one in after.children}, "a sub-agent is gone")
        for one in after.children:
            check(_outcome(one) == "committed", f"a sub-agent's turn is {_outcome(one)}")
            check(one.record.status == "idle", f"a sub-agent is {one.record.status}")
            if one.record.id in known and _outcome(known[one.record.id]) == "committed":
                check(known[one.record.id].turn == one.turn, "the committed turn of a sub-agent has changed")
                asked = [e for e in self._world.log.read() if e.what == "asked" and e.phase == "after"]
                check(
                    TASKS[one.call] not in [e.call for e in asked], "a sub-agent was asked again for what it had done"
                )
        self._check_told(done, after)

    def _check_told(self, done: Turn, after: _Found) -> None:
        """The parent's history says of each sub-agent once that it was set to work, and once how that ended."""
        bodies = [event.body for event in done.events]
        spawned = sorted((b.call_id, b.conversation, b.turn) for b in bodies if isinstance(b, SubAgentSpawned))
        ended = [(b.conversation, b.turn, b.outcome, b.spent) for b in bodies if isinstance(b, SubAgentFinished)]
        turns = [(one.call, one.record.id, one.turn) for one in after.children if one.turn is not None]
        check(spawned == sorted((call, id, turn.id) for call, id, turn in turns), f"it is told of {spawned}")
        wanted = sorted((id, turn.id) for _, id, turn in turns)
        check(sorted((id, turn or "") for id, turn, _, _ in ended) == wanted, f"it is told of the ends {ended}")
        check({outcome for _, _, outcome, _ in ended} == {"committed"}, f"it is told of the ends {ended}")
        spent = {turn.id: turn.usage for _, _, turn in turns}
        check(all(spent[turn or ""] == used for _, turn, _, used in ended), "it is told of another cost")

    def _check_left(self, before: _Found, after: _Found) -> None:
        turn = after.turn
        check(turn is not None and turn.outcome == "cancelled", "the turn that was left is not cancelled")
        check(len(after.children) == len(before.children), "a sub-agent came or went")
        self._check_children(after)
        for old, new in zip(_in_order(before.children), _in_order(after.children), strict=True):
            check(new.record.status == "idle", f"a sub-agent of a turn that was left is {new.record.status}")
            if _outcome(old) == "committed":
                check(old.turn == new.turn, "the committed turn of a sub-agent has changed")
            else:
                check(_outcome(new) in (None, "cancelled"), f"a sub-agent's turn is {_outcome(new)}")

    def _check_usage(self, after: _Found) -> None:
        """Each answer is counted once: all that somebody still knows of, and none that was not paid for."""
        log = self._world.log.read()
        paid = sum(entry.what == "asked" for entry in log)
        since = sum(entry.what == "asked" and entry.phase in ("start", "after", "next") for entry in log)
        turns = [turn for turn in (after.turn, *(one.turn for one in after.children)) if turn is not None]
        known = sum(max((event.envelope.response or 0 for event in turn.events), default=0) for turn in turns)
        counted = after.usage.calls
        least = max(since, known + sum(entry.phase in ("start", "next") for entry in log if entry.what == "asked"))
        check(least <= counted <= paid, f"{paid} answers were paid for, {least} are known, and {counted} are counted")


async def _child(store: SqliteStore, record: StoredConversation) -> _Child:
    check_pairing(await store.events(record.id))
    turns = [turn for turn in (await store.turns(record.id, limit=1000)).items if turn.kind == "turn"]
    own = [turn for turn in turns if turn.conversation == record.id]
    check(len(own) <= 1, f"a sub-agent has {len(own)} turns where it has one task")
    turn = await read_turn(store, own[0].id) if own else None
    return _Child(record, record.lineage.call or "", turn)


def _outcome(child: _Child) -> str | None:
    return None if child.turn is None else child.turn.outcome


def _in_order(children: Sequence[_Child]) -> list[_Child]:
    return sorted(children, key=lambda one: one.record.id)


def _fairly(kills: Sequence[Kill]) -> list[Kill]:
    """The same kills in an order of which any beginning is a fair sample: of each act, stage and kind, turn by turn."""
    groups: dict[tuple[str, str, str], list[Kill]] = {}
    for kill in sorted(kills, key=_number):
        written = "written" if kill.point.name == "COMMIT" else kill.point.kind
        groups.setdefault((kill.act, kill.stage, written), []).append(kill)
    rounds = range(max(map(len, groups.values()), default=0))
    return [group[n] for n in rounds for group in groups.values() if n < len(group)]


def _number(kill: Kill) -> int:
    """A number that is always the same for a kill, and says nothing about it."""
    return zlib.crc32(str(kill).encode())


def counted(verdicts: Sequence[Verdict]) -> Counter[str]:
    """How often what came of it."""
    return Counter(f"{v.kill.act}, {v.kill.stage}: {v.stood}; then {v.way}" for v in verdicts if v.problem is None)
