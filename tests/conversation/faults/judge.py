"""What must hold after a fault, whatever it was and wherever it struck.

The judge first looks at the file through a connection of its own, as another program would, and compares that with what
the caller was told and with what the tools did to the world. Then somebody goes on, in one of the ways there are, and
what the model is asked from then on must be, byte for byte, what it is asked where the fault never happened.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct
from tests.conversation.faults.runs import KEY, Run
from tests.conversation.faults.scenario import ANSWER, CALLS, NEXT, STEERED, STRUCK, Entry, Listener, requests
from tests.conversation.faults.starts import Act, Start

from forkpoint import AsyncConversation
from forkpoint.agent.loop import MAY_HAVE_RUN
from forkpoint.backend.messages import WITHOUT_INPUT
from forkpoint.conversation import Turn
from forkpoint.engine.turns.reader import read_turn
from forkpoint.errors import NoSuchTurn, NotFound, OutcomeUnknown
from forkpoint.events import AssistantMessage, Event, ToolCall, ToolResult, UserMessage
from forkpoint.llm.wires.wording import marked_words_of, text_of
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import Status

Way: TypeAlias = Literal["retry", "resume", "discard", "supersede"]
"""How somebody goes on: with the turn, tried again or resumed; or without it, and sends another message."""

WAYS: tuple[Way, ...] = get_args(Way)
OPEN = "running", "interrupted", "awaiting_approval"
EARLIER = "before", "first"
"""The phases of the log up to the fault. What comes later is `after`, and then `next`."""


class Broken(Exception):
    """A promise was not kept."""


class Reference(Struct, frozen=True):
    """What the model is asked where no fault ever happens."""

    turn: tuple[bytes, ...]  # by the turn that is struck elsewhere
    next: bytes  # by the turn after it
    without: bytes  # by that turn, if the struck one had never been


class Found(Struct, frozen=True):
    """What another program reads in the file."""

    turn: Turn | None  # the struck one; None if there is none
    status: Status
    events: tuple[Event, ...]
    state: Mapping[str, Any]


async def make_reference(start: Start, folder: Path, listener: Listener | None) -> Reference:
    """Runs the turn and the one after it without a fault, and the one after it without the turn."""
    start.copy(folder / "with")
    start.copy(folder / "without")
    whole, alone = (Run(start, folder / name, None, listener) for name in ("with", "without"))
    async with await SqliteStore.open(whole.file) as store, await whole.open(store) as conversation:
        await approved(conversation, await _as_asked(conversation, start.act))
        whole.log.phase = "next"
        await conversation.run(NEXT)
    async with await SqliteStore.open(alone.file) as store, await alone.open(store) as conversation:
        alone.log.phase = "next"
        await conversation.run(NEXT)
    turn, (after,) = requests(whole.log.read(), "first"), requests(whole.log.read(), "next")
    (without,) = requests(alone.log.read(), "next")
    whole.log.close()
    alone.log.close()
    return Reference(tuple(turn), after, without)


async def judge(run: Run, reference: Reference, way: Way, *, elsewhere: bool) -> str:
    """Checks all that is promised, and goes on. ``elsewhere``: another process does, and not the same object.

    Raises `Broken`. Returns how the turn stood.
    """
    judging = _Judging(run, reference, elsewhere)
    if run.told != "killed":
        await run.log.quiet()
    if run.told == "unknown":
        await judging.settle()
    found = await judging.look()
    judging.compare_with_what_was_told(found)
    judging.compare_with_the_world(found)
    judging.compare_with_what_was_steered(found)
    stood = "never begun" if found.turn is None else found.turn.outcome
    if run.conversation is not None and not elsewhere:
        await judging.go_on(run.conversation, found, way)
        return stood
    if run.store is not None and run.conversation is not None:
        await run.conversation.close()
        await run.store.close()
    async with await SqliteStore.open(run.file) as store, await run.open(store) as conversation:
        await judging.go_on(conversation, await judging.look(), way)
    return stood


class _Judging:
    def __init__(self, run: Run, reference: Reference, elsewhere: bool) -> None:
        self._run = run
        self._reference = reference
        fault = run.fault
        self._left_open = fault is not None and fault.lasting  # its end could not be written yet
        self._closed = fault is not None and fault.how == "store closed"
        self._died = (
            run.told == "killed" or self._closed or (self._left_open and elsewhere)
        )  # with what only memory held

    async def settle(self) -> None:
        """The disk answers again, and so it can be told what became of the turn."""
        run = self._run
        if run.conversation is None or self._closed:  # its own process has done so, or cannot ask any more
            return
        assert isinstance(run.error, OutcomeUnknown)
        try:
            turn = await run.conversation.settle(run.error.id)
        except NotFound:
            return
        check(turn.outcome in self._ends("failed"), f"it was settled, and is {turn.outcome}")
        self._left_open = self._died = False

    async def look(self) -> Found:
        """Reads the file through a store of its own."""
        async with await SqliteStore.open(self._run.file) as store:
            verified = await store.verify()
            check(verified.ok, f"verify finds flaws: {verified.flaws}")
            try:
                record = await store.read(self._run.start.conversation)
            except NotFound:
                return Found(None, "idle", (), {})
            page = await store.turns(record.id, limit=1000)
            begins = WITHOUT_INPUT if self._run.start.act == "go on" else STRUCK
            own = [turn for turn in page.items if turn.input is not None and begins in turn.input]
            check(len(own) <= 1, f"there are {len(own)} turns where there was one")
            turn = await read_turn(store, own[0].id) if own else None
            events = tuple(await store.events(record.id))
            state = dict((await store.state(record.id)).values)
        check_pairing(events)
        return Found(turn, record.status, events, state)

    def compare_with_what_was_told(self, found: Found) -> None:
        run, turn = self._run, found.turn
        outcome = None if turn is None else turn.outcome
        match run.told:
            case "returned":
                wanted = "awaiting_approval" if run.start.act == "wait" else "committed"
                check(outcome == wanted, f"it returned, and the turn is {outcome}")
                if run.turn is not None:  # a child tells only that something was returned
                    check(run.turn.outcome == wanted, f"it returned a turn that is {run.turn.outcome}")
                    check(run.turn.text in (ANSWER, ""), f"it returned another answer: {run.turn.text}")
            case "failed":
                self._ended(outcome, "failed")
            case "cancelled" if run.error is not None:
                self._ended(outcome, "cancelled")
            case "cancelled":  # a plain cancellation says nothing, and may come when it has failed already
                ends = self._ends("cancelled", *(["failed"] if self._raises() else []))
                check(outcome in ends, f"it was cancelled, and the turn is {outcome}")
            case "unknown":
                ends = self._ends("failed", *(["interrupted"] if self._closed else []))
                check(outcome in ends, f"it was settled, and the turn is {outcome}")
            case "refused" | "raised":
                check(outcome == run.start.stood, f"{run.error!r} was raised, and yet the turn is {outcome}")
            case "killed":
                check(outcome in self._ends("interrupted"), f"the process died, and the turn is {outcome}")
        if run.cancelled is not None:
            check(run.cancelled.outcome == outcome, f"cancel() says {run.cancelled.outcome}, and it is {outcome}")
        status = outcome if outcome in OPEN else "idle"
        check(found.status == status, f"the turn is {outcome}, and the conversation {found.status}")
        if turn is not None and outcome == "committed":
            whole = turn.text == ANSWER and tuple(call.id for call in turn.calls) == CALLS
            check(whole, f"it committed in part: {turn}")
            check(found.events[-1].turn == turn.id, "it committed, and the head is not at its end")
            kept = "weight" in found.state or any(call.id == CALLS[0] and call.status != "done" for call in turn.calls)
            check(kept, "it committed without its state")
        else:
            check(len(found.events) == run.start.events, f"it is {outcome}, and something of it is in history")
            check("weight" not in found.state, f"it is {outcome}, and its state is in force")
        self._check_usage(turn)

    def compare_with_the_world(self, found: Found) -> None:
        """What the turn says of its tools, and what they did."""
        did = _did(self._run.log.read(), EARLIER)
        calls = {call.id: call for call in found.turn.calls} if found.turn is not None else {}
        for id in CALLS:
            starts, ends = did[id, "starts"], did[id, "ends"]
            check(starts <= 1 and ends <= starts, f"{id} was run {starts} times in one turn")
            if starts:
                check(id in calls, f"{id} was started, and the turn does not know of it")
            match calls[id].status if id in calls else None:
                case "done":
                    check(ends == 1, f"{id} is done, and did not run to its end")
                case "failed":
                    check(self._struck_a_tool(), f"{id} has failed: {calls[id].result}")
                case "waiting":
                    check(not starts and self._run.start.asks, f"{id} waits, and was started")
                case "unknown" | None:
                    pass
                case status:
                    raise Broken(f"{id} is {status}")

    def compare_with_what_was_steered(self, found: Found) -> None:
        """What somebody heard who sent the turn a message, and what the turn knows of it."""
        heard, fault = self._run.heard(), self._run.fault
        there = found.turn.steered if found.turn is not None else ()
        check(len(there) <= len(heard[:1]), f"a message was sent {len(heard[:1])} times, and is there: {there}")
        if "accepted" in heard:
            check(len(there) == 1, "the message was accepted, and is lost")
        if "refused" in heard and fault is not None and fault.point.kind == "statement":
            check(not there, "the message was refused, and is there")
        if found.turn is not None:
            check(_steered(found.turn) == sum(one.delivered for one in there), f"it is said to be delivered: {there}")
            if found.turn.outcome == "committed":
                check(all(one.delivered for one in there), "the turn committed, and had not heard the message")

    async def go_on(self, conversation: AsyncConversation, before: Found, way: Way) -> None:
        log, reference, turn = self._run.log, self._reference, before.turn
        is_open = turn is not None and turn.outcome in OPEN
        act = self._run.start.act
        key = KEY if act in ("keyed", "go on") else None
        log.phase = "after"
        done: Turn | None
        again: tuple[bytes, ...] = ()
        if turn is not None and turn.outcome == "committed":
            done = turn
            if key is not None:
                same = await _as_asked(conversation, act, key)
                check(same.id == turn.id, "the same key gave another turn")
        elif way in ("discard", "supersede"):
            done = None
            if way == "discard" and is_open:
                ended = await conversation.discard()
                check(ended.outcome in ("cancelled", "failed"), f"it was discarded, and is {ended.outcome}")
        elif turn is None:
            check(await _refuses_to_retry(conversation), "there is nothing to retry, and yet something was tried")
            done, again = await _as_asked(conversation, act, key), reference.turn
        elif way == "retry":
            done, again = await conversation.retry(key=key), reference.turn
            check(done.retry_of == turn.id, "the retry does not say what it retries")
        else:
            waits = (await conversation.turn(turn)).outcome == "awaiting_approval"
            done = await (conversation.approve() if waits else conversation.resume())
            again = reference.turn[_answers(turn) :]
            check(done.id == turn.id, "another turn was resumed")
        done = done and await approved(conversation, done)
        log.phase = "next"
        await conversation.run(NEXT, supersede=way == "supersede")
        entries = log.read()
        expected = reference.without
        if done is not None:
            check(done.outcome == "committed" and done.text == ANSWER, f"it went on, and is {done}")
            self._check_calls(before, done, entries, resumed=way == "resume")
            left = before.turn.steered if before.turn is not None and before.turn.id == done.id else ()
            check(_steered(done) == len(left), f"the model was told {_steered(done)} of {len(left)} messages")
            shown, told = _shown(done), bool(left)
            expected = with_results(reference.next, shown, told=told)
            again = tuple(with_results(body, shown, told=told) for body in again)
        asked = requests(entries, "after")
        if way == "resume" and self._left_open and len(asked) < len(again):
            again = again[len(again) - len(asked) :]  # the turn had come further than the disk knew
        _check_requests("the turn that goes on", asked, again)
        _check_requests("the next turn", requests(entries, "next"), [expected])
        await self._check_end(conversation, entries, without=done is None)

    def _check_calls(self, before: Found, done: Turn, entries: Sequence[Entry], *, resumed: bool) -> None:
        """No finished tool was run again, nor one that may have run; and the committed turn says so."""
        known = {call.id: call.status for call in before.turn.calls} if before.turn is not None else {}
        after, earlier = _did(entries, ["after"]), _did(entries, EARLIER)
        committed = before.turn is not None and before.turn.outcome == "committed"
        for call in done.calls:
            runs, ran = after[call.id, "starts"], earlier[call.id, "starts"]
            if self._left_open and resumed and not runs and known.get(call.id) in (None, "unknown", "waiting"):
                known[call.id] = call.status  # memory knew more than the disk, and has written it down since
            if committed:
                check(runs == 0, f"{call.id} was run after its turn had committed")
            elif not resumed or before.turn is None:
                check(call.status == "done" and runs == 1, f"{call.id} was run {runs} times, and is {call.status}")
            elif known.get(call.id, "waiting") == "waiting":
                check(call.status == "done" and runs == 1, f"{call.id} was run {runs} times, and is {call.status}")
                check(not ran, f"{call.id} was started before, and was run again")
            else:
                check(runs == 0, f"{call.id} was {known[call.id]}, and was run again")
                check(call.status == known[call.id], f"{call.id} was {known[call.id]} and became {call.status}")
                check(call.status != "unknown" or call.result == MAY_HAVE_RUN, f"of {call.id} is said: {call.result}")
                check(call.status != "done" or ran == 1, f"{call.id} is done, and was run {ran} times")

    async def _check_end(self, conversation: AsyncConversation, entries: Sequence[Entry], *, without: bool) -> None:
        verified = await conversation.verify()
        check(verified.ok, f"at the end verify finds flaws: {verified.flaws}")
        status = await conversation.status()
        check(status == "idle", f"at the end the conversation is {status}")
        check_pairing(await conversation.events())
        if without:
            check("weight" not in await conversation.agent_state(), "the state of a turn that was left is in force")
        counted = (await conversation.stats()).spent.calls - self._run.start.paid
        paid = _answered(entries, (*EARLIER, "after", "next"))
        least = _answered(entries, ("before", "after", "next")) if self._died else paid
        check(least <= counted <= paid, f"{paid} answers were paid for, and {counted} are counted")

    def _check_usage(self, turn: Turn | None) -> None:
        paid = _answered(self._run.log.read(), EARLIER)
        counted = 0 if turn is None else turn.usage.calls
        if self._died or self._left_open:
            least = 0 if turn is None else _answers(turn)
            check(least <= counted <= paid, f"{paid} answers were paid for, {least} are known, and {counted} counted")
        else:
            check(counted == paid, f"{paid} answers were paid for, and {counted} are counted for the turn")

    def _ends(self, *ends: str) -> set[str | None]:
        """How a turn may stand when the fault came too early, too late, or between."""
        start = self._run.start
        return {start.stood, *ends, "committed", *(["awaiting_approval"] if start.asks else [])}

    def _ended(self, found: str | None, wanted: str) -> None:
        open = self._left_open and found == "running"
        open = open or (self._closed and found == "interrupted")
        check(found == wanted or open, f"the caller heard that it {wanted}, and the turn is {found}")

    def _raises(self) -> bool:
        return self._run.fault is not None and self._run.fault.kind == "exception"

    def _struck_a_tool(self) -> bool:
        return self._raises() and self._run.fault is not None and self._run.fault.point.layer == "tool"


async def _as_asked(conversation: AsyncConversation, act: Act, key: str | None = None) -> Turn:
    """The turn as its caller asks for it: with the message, or without one where the message is there already."""
    return await (conversation.go_on(key=key) if act == "go on" else conversation.run(STRUCK, key=key))


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def check_pairing(events: Iterable[Event]) -> None:
    """Each call has its result before anything else is said, in order: asked of the events, not of `verify`."""
    open: list[str] = []
    for event in events:
        match event.body:
            case ToolCall(call_id=id):
                open.append(id)
            case ToolResult(call_id=id):
                check(bool(open) and open.pop(0) == id, f"{event.id} answers {id}, which is not the next open call")
            case AssistantMessage():
                check(not open, f"{open} have no result, and the model speaks")
            case _:
                pass
    check(not open, f"{open} have no result")


def with_results(body: bytes, shown: Mapping[str, str], *, told: bool) -> bytes:
    """A request in which calls have other results than where nothing went wrong.

    Unless the model was ``told`` what was steered, the request is without that too.
    """
    request = msgspec.json.decode(body)
    is_there = any(message["content"] == STEERED for message in request["messages"])
    if not shown and told >= is_there:
        return body
    if not told:
        request["messages"] = [message for message in request["messages"] if message["content"] != STEERED]
    for message in request["messages"]:
        if message["role"] == "tool" and message["tool_call_id"] in shown:
            message["content"] = shown[message["tool_call_id"]]
    return msgspec.json.encode(request)


def _check_requests(whose: str, found: Sequence[bytes], wanted: Sequence[bytes]) -> None:
    check(len(found) == len(wanted), f"{whose} asked {len(found)} times, and not {len(wanted)} times")
    for number, (one, other) in enumerate(zip(found, wanted, strict=True), start=1):
        check(one == other, f"{whose} sent another request {number}:\n{one.decode()}\nand not\n{other.decode()}")


def _shown(turn: Turn) -> dict[str, str]:
    """What the model is shown of calls that are not done, instead of what they return where nothing goes wrong."""
    results = [event.body for event in turn.events if isinstance(event.body, ToolResult)]
    return {result.call_id: text_of(marked_words_of(result)) for result in results if result.status != "done"}


def _steered(turn: Turn) -> int:
    """How often the message that was steered is among the steps of a turn."""
    said = [event.body for event in turn.events if isinstance(event.body, UserMessage)]
    return sum(text_of(message.parts) == STEERED for message in said)


def _did(entries: Iterable[Entry], phases: Iterable[str]) -> Counter[tuple[str, str]]:
    return Counter((entry.call, entry.what) for entry in entries if entry.phase in phases)


def _answered(entries: Iterable[Entry], phases: Iterable[str]) -> int:
    return sum(entry.what == "answered" and entry.phase in phases for entry in entries)


def _answers(turn: Turn) -> int:
    """How many answers of the model its steps have."""
    return max((event.envelope.response or 0 for event in turn.events), default=0)


async def approved(conversation: AsyncConversation, turn: Turn) -> Turn:
    """The turn, once nothing in it waits any more."""
    if turn.outcome != "awaiting_approval":
        return turn
    await conversation.open_turn()  # an approval is of what was shown
    return await conversation.approve()


async def _refuses_to_retry(conversation: AsyncConversation) -> bool:
    try:
        await conversation.retry()
    except NoSuchTurn:
        return True
    return False
