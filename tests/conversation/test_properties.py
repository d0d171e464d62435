"""Whatever is done to conversations, in whatever order, they agree with a model that is a list of commits each.

What was committed is told in advance, word for word. From then on the model goes by the events themselves: history does
not change, so what two paths share, and what a cut, a keep or a copy has, is decided by comparing lists of events.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct
from msgspec.structs import replace
from tests.conversation.support.agents import PATIENCE, agent_of, said

from forkpoint import Conversation, ToolContext, TurnCancelled, TurnFailed, tool
from forkpoint.conversation import Turn
from forkpoint.errors import BringRefused, CannotKeep, ForkpointError, NoSuchTurn, NothingToRun, TurnOpen
from forkpoint.events import BroughtAs, Event, ModelCalled, ResultSubstituted, StateChange, ToolResult, Usage
from forkpoint.history.pairing import NO_CALLS, SAID
from forkpoint.llm import TextPiece
from forkpoint.testing import Fault, Reply, ScriptedCall

BRANCHES = 5  # more would only take longer
DIALOGUE = ("user_message", "assistant_message", "tool_call", "tool_result")
AFTER_RESULTS = SAID - {"tool_result"} | {"model_called"}

Words = list[tuple[str, str]]


def spoken(events: Iterable[Event]) -> Words:
    """Who said what; a denial in a word, however it is put to the model."""
    found: Words = []
    for event in events:
        is_denied = isinstance(event.body, ToolResult) and event.body.status == "denied"
        found += [("tool", "denied")] if is_denied else said([event])
    return found


def state_after(events: Iterable[Event]) -> dict[str, int]:
    """The agent's state after events."""
    state: dict[str, int] = {}
    for event in events:
        if isinstance(event.body, StateChange):
            state |= {key: int(value) for key, value in event.body.set}
            state = {key: value for key, value in state.items() if key not in event.body.removed}
    return state


class Commit(Struct, frozen=True):
    """A turn or a note, or its first events, on a path."""

    id: str
    events: tuple[Event, ...]
    size: int  # how many events all of it has
    turn: bool = True

    @property
    def part(self) -> bool:
        return len(self.events) < self.size


class Try(Struct, frozen=True):
    """A turn that did not commit: what stands in its journal, where it began, and what it has used."""

    id: str
    base: str | None
    message: str
    words: tuple[tuple[str, str], ...]
    state: tuple[tuple[str, int], ...]
    usage: Usage
    waits: bool = False  # for somebody's approval, also after it was discarded
    sent: tuple[tuple[str, str], ...] = ()  # messages that its model has not got yet


class Branch:
    """A conversation beside the list that it should be."""

    def __init__(self, conversation: Conversation, path: tuple[Commit, ...] = (), *, stored: bool = True) -> None:
        self.conversation = conversation
        self.path = path
        self.tries: list[Try] = []
        self.waiting: Try | None = None
        self.stored = stored
        self.beside = Usage()  # what it has spent in no turn
        self.own: set[str] = set()  # the events of its path that it has paid for
        self.own_from = 0  # all that it has paid for behind that is in one piece

    @property
    def events(self) -> list[Event]:
        return [event for commit in self.path for event in commit.events]

    @property
    def state(self) -> dict[str, int]:
        return state_after(self.events)

    @property
    def place(self) -> str | None:
        """Where it stands."""
        return str(self.path[-1].events[-1].id) if self.path else None

    @property
    def last_try(self) -> Try | None:
        """The one that retry() and resume() mean: the newest that began where the conversation stands."""
        here = [one for one in (*self.tries, self.waiting) if one is not None and one.base == self.place]
        return max(here, key=lambda one: one.id, default=None)

    @property
    def is_unfinished(self) -> bool:
        """Whether the model is to speak."""
        last = next((event.kind for event in reversed(self.events) if event.kind in SAID), None)
        return last in ("user_message", "tool_result")

    def upto(self, count: int) -> tuple[Commit, ...]:
        """The path that ends after so many events."""
        path: list[Commit] = []
        for commit in self.path:
            if count > 0:
                path.append(replace(commit, events=commit.events[:count]))
            count -= len(commit.events)
        return tuple(path)

    def before(self, commit: Commit) -> int:
        """How many events stand before a commit of the path."""
        return sum(len(one.events) for one in itertools.takewhile(lambda one: one is not commit, self.path))

    def cuts(self) -> list[int]:
        """After how many events the path may be cut: after what a user said, and after the results of calls."""
        events = self.events
        return [n + 1 for n, event in enumerate(events) if event.kind == "user_message" or ends_exchange(events, n)]


def shared(here: Branch, there: Branch) -> int:
    """How many events two paths share."""
    both = zip(here.events, there.events, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0].id == pair[1].id, both))


def ends_exchange(events: Sequence[Event], n: int) -> bool:
    """Whether the last result of an exchange stands here."""
    if events[n].kind != "tool_result":
        return False
    return next((event.kind for event in events[n + 1 :] if event.kind in SAID), None) != "tool_result"


def exchanges(events: Iterable[Event]) -> list[list[Event]]:
    """What was asked and answered: a user who speaks after an answer begins anew."""
    found: list[list[Event]] = []
    for event in (event for event in events if event.kind in DIALOGUE):
        if not found or (event.kind == "user_message" and found[-1][-1].kind == "assistant_message"):
            found.append([])
        found[-1].append(event)
    return found


class Plan(Struct, frozen=True):
    """What the model asks for, response by response: which keys its calls set. With ``s`` somebody steers the turn."""

    calls: tuple[tuple[str, ...], ...]


plans = st.builds(
    Plan,
    calls=st.lists(st.lists(st.sampled_from("abcs"), min_size=1, max_size=3, unique=True).map(tuple), max_size=2).map(
        tuple
    ),
)
numbers = st.integers(0, 9)


class Conversations(RuleBasedStateMachine):
    """Turns that commit, fail, are cancelled or wait, and everything that can be done with them and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.todo: list[Reply] = []
        self.total = Usage()
        self.heard = threading.Event()
        self.branches: list[Branch] = []
        self.running: Conversation | None = None
        self.renamed = 0
        self.cost: dict[str, Usage] = {}  # of events, by their ids
        self.places: dict[str, str] = {}  # the ids of events, by what an origin calls them
        self.root: dict[str, str] = {}  # of which event each is a copy, by their ids

    @initialize(begun=st.lists(plans, max_size=3))
    def begin(self, begun: list[Plan]) -> None:
        @tool
        def put(ctx: ToolContext, key: str, value: int) -> str:
            """Sets a key."""
            ctx.state[key] = value
            if key == "s":
                assert self.running is not None
                assert not self.running.steer(f"steer {value}").delivered
            return f"set {key}"

        @tool(risky=True)
        def ask_first() -> str:
            """Waits for an approval."""
            return "was approved"

        def told(update: Any) -> None:
            if isinstance(update, TextPiece) and update.text == "never":
                self.heard.set()

        self.told = told
        agent = agent_of(lambda _: self.todo.pop(0), tools=[put, ask_first], approval="risky")
        self.branches.append(Branch(Conversation(agent, store="memory:", callbacks=[told]), stored=False))
        for plan in begun:
            self.run(0, plan, "ok")

    def teardown(self) -> None:
        self.verified()
        for branch in reversed(self.branches):
            branch.conversation.close()

    # What the model will say, and what it costs.

    def _reply(self, text: str = "", calls: tuple[ScriptedCall, ...] = (), fault: Fault | None = None) -> Reply:
        usage = Usage(calls=1, input=next(self.numbers), output=1)
        self.total += usage
        return Reply(text, calls=calls, usage=usage, fault=fault)

    def _asking(self, plan: Plan, state: dict[str, int], words: Words) -> list[Reply]:
        replies = []
        for keys in plan.calls:
            values = {key: next(self.numbers) for key in keys}
            state |= values
            made = (ScriptedCall("put", f'{{"key": "{key}", "value": {value}}}') for key, value in values.items())
            replies.append(self._reply("So.", tuple(made)))
            words += [("assistant", "So."), *(("tool", f"set {key}") for key in keys)]
            words += [("user", f"steer {value}") for key, value in values.items() if key == "s"]
        return replies

    def _branch(self, number: int, fits: Callable[[Branch], object] = lambda _: True) -> Branch:
        """One of the branches; most often one that fits, if there is one: else little would happen."""
        fitting = [branch for branch in self.branches if fits(branch)]
        among = fitting if fitting and number else self.branches
        return among[number % len(among)]

    def _committed(
        self, branch: Branch, words: Words, state: dict[str, int], usage: Usage, *, turn: bool = True
    ) -> Commit:
        """Takes what stands at the end of a path since the last look at it into the model."""
        count = len(branch.events)
        events = branch.conversation.events()[count:]
        commit = Commit(events[0].turn, tuple(events), len(events), turn)
        assert {event.turn for event in events} == {commit.id}
        assert spoken(events) == words
        branch.path = (*branch.path, commit)
        branch.stored = True
        assert branch.state == state
        for n, event in enumerate(events):
            id = str(event.id)
            self.places[f"{commit.id}/{n}"] = id
            origin = event.envelope.origin
            self.root[id] = id if origin is None else self.root[self.places[origin]]
            self.cost[id] = event.body.usage if isinstance(event.body, ModelCalled) else Usage()
            branch.own.add(id)
        if not turn:  # what a note has cost stands in no event
            self.cost[id] += usage
        assert self._cost(events) == usage
        return commit

    def _cost(self, events: Iterable[Event]) -> Usage:
        return sum((self.cost[str(event.id)] for event in events), Usage())

    def _run(
        self, branch: Branch, plan: Plan, ending: str, run: Callable[[], Turn], message: str, retry: bool = False
    ) -> None:
        """Runs a turn from the head and keeps book of how it ended."""
        state, before = dict(branch.state), self.total
        words: Words = [("user", message)] if message else []
        self.todo[:] = self._asking(plan, state, words)
        self.running = branch.conversation
        if branch.waiting is not None and retry:
            branch.tries.append(branch.waiting)
            branch.waiting = None
        match ending:
            case "ok":
                self.todo.append(self._reply("Done."))
                turn = run()
                assert turn.outcome == "committed"
                done = self._committed(branch, [*words, ("assistant", "Done.")], state, self.total - before)
                assert (turn.id, turn.usage) == (done.id, self.total - before)
                return
            case "fail":
                self.todo.append(self._reply("x", fault=Fault("overloaded")))
                with pytest.raises(TurnFailed) as failed:
                    run()
                id = failed.value.id
            case "cancel":
                self.todo.append(self._reply("never", fault=Fault("hang", after=1)))
                id = self._cancelled(branch, run)
            case _:
                self.todo.append(self._reply("Please.", (ScriptedCall("ask_first"),)))
                turn = run()
                assert turn.outcome == "awaiting_approval"
                id, words = turn.id, [*words, ("assistant", "Please.")]
        assert self.todo == []
        branch.stored = True
        waits = ending == "wait"
        used = self.total - before
        made = Try(id, branch.place, message, tuple(words), tuple(state.items()), used, waits=waits)
        if waits:
            branch.waiting = made
        else:
            branch.tries.append(made)

    def _cancelled(self, branch: Branch, run: Callable[[], Turn]) -> str:
        self.heard.clear()
        found: list[BaseException] = []

        def work() -> None:
            try:
                run()
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert self.heard.wait(PATIENCE)
        turn = branch.conversation.cancel()
        thread.join(PATIENCE)
        assert turn.outcome == "cancelled"
        assert type(found[0]) is TurnCancelled
        return turn.id

    # Turns.

    @rule(number=numbers, plan=plans, ending=st.sampled_from(["ok", "ok", "fail", "cancel", "wait"]))
    def run(self, number: int, plan: Plan, ending: str) -> None:
        branch = self._branch(number)
        message = f"message {next(self.numbers)}"
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.run(message)
            return
        self._run(branch, plan, ending, lambda: branch.conversation.run(message), message)

    @rule(number=numbers, plan=plans, ending=st.sampled_from(["ok", "fail", "cancel", "wait"]))
    def go_on(self, number: int, plan: Plan, ending: str) -> None:
        branch = self._branch(number, lambda one: one.is_unfinished and one.waiting is None)
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.go_on()
        elif not branch.is_unfinished:
            with pytest.raises(NothingToRun):
                branch.conversation.go_on()
        else:
            self._run(branch, plan, ending, branch.conversation.go_on, "")

    @rule(number=numbers, plan=plans, ending=st.sampled_from(["ok", "fail", "cancel", "wait"]))
    def retry(self, number: int, plan: Plan, ending: str) -> None:
        branch = self._branch(number, lambda one: one.last_try)
        if (last := branch.last_try) is None:
            with pytest.raises(NoSuchTurn):
                branch.conversation.retry()
            return
        self._run(branch, plan, ending, branch.conversation.retry, last.message, retry=True)

    @rule(number=numbers, works=st.booleans())
    def resume(self, number: int, works: bool) -> None:
        branch = self._branch(number, lambda one: one.last_try)
        last = branch.last_try
        if last is None:
            with pytest.raises(NoSuchTurn):
                branch.conversation.resume()
        elif branch.waiting is not None:
            assert last is branch.waiting
            assert branch.conversation.resume().outcome == "awaiting_approval"
        elif last.waits:
            assert branch.conversation.resume().outcome == "awaiting_approval", "nobody has approved it yet"
            branch.tries.remove(last)
            branch.waiting = last
        else:
            self._resumed(branch, last, branch.conversation.resume, works)

    def _resumed(
        self, branch: Branch, last: Try, act: Callable[[], Turn], works: bool, more: Words | None = None
    ) -> None:
        words = [*last.words, *(more or []), *last.sent]
        if last in branch.tries:
            branch.tries.remove(last)
        before = self.total
        self.todo[:] = [self._reply("Done.") if works else self._reply("x", fault=Fault("overloaded"))]
        usage = last.usage + (self.total - before)
        if works:
            turn = act()
            assert (turn.id, turn.outcome, turn.usage) == (last.id, "committed", usage)
            self._committed(branch, [*words, ("assistant", "Done.")], dict(last.state), usage)
        else:
            with pytest.raises(TurnFailed):
                act()
            branch.tries.append(Try(last.id, last.base, last.message, tuple(words), last.state, usage))

    @precondition(lambda self: any(branch.waiting for branch in self.branches))
    @rule(number=numbers, act=st.sampled_from(["approve", "deny", "discard"]), works=st.booleans())
    def decide(self, number: int, act: str, works: bool) -> None:
        waiting = [one for one in self.branches if one.waiting is not None]
        branch = waiting[number % len(waiting)]
        last, branch.waiting = branch.waiting, None
        assert last is not None
        if act == "discard":
            assert branch.conversation.discard().outcome == "cancelled"
            branch.tries.append(last)
            return
        result = "was approved" if act == "approve" else "denied"
        decide = branch.conversation.approve if act == "approve" else lambda: branch.conversation.deny(reason="no")
        self._resumed(branch, last, decide, works, [("tool", result)])

    @rule(number=numbers)
    def steer(self, number: int) -> None:
        """A message for a turn that waits. Those for turns that run are sent by a tool."""
        branch, message = self._branch(number, lambda one: one.waiting), f"steer {next(self.numbers)}"
        if branch.waiting is None:
            with pytest.raises(NoSuchTurn):
                branch.conversation.steer(message)
            return
        sent = branch.conversation.steer(message)
        assert (sent.outcome, sent.delivered) == ("awaiting_approval", False)
        branch.waiting = replace(branch.waiting, sent=(*branch.waiting.sent, ("user", message)))

    # Between turns.

    @rule(number=numbers, key=st.sampled_from("abcd"), remove=st.booleans())
    def update_state(self, number: int, key: str, remove: bool) -> None:
        branch, value = self._branch(number), next(self.numbers)
        changes = {"remove": [key]} if remove else {"set": {key: value}}
        state = branch.state
        if remove and key not in state:
            branch.conversation.update_state(**changes)  # which changes nothing
            return
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.update_state(**changes)
            return
        branch.conversation.update_state(**changes)
        if remove:
            del state[key]
        else:
            state[key] = value
        self._committed(branch, [], state, Usage(), turn=False)

    @rule(number=numbers, works=st.booleans())
    def ask(self, number: int, works: bool) -> None:
        branch, before = self._branch(number), self.total
        self.todo[:] = [self._reply("Aside.", fault=None if works else Fault("overloaded"))]
        if works:
            assert branch.conversation.ask("?").text == "Aside."
        else:
            with pytest.raises(ForkpointError):
                branch.conversation.ask("?")
        branch.beside += self.total - before

    @rule(number=numbers, which=numbers)
    def why(self, number: int, which: int) -> None:
        branch = self._branch(number)
        asked = [event.turn for event in branch.events if event.kind == "model_called"]
        tried = [one.id for one in branch.tries]
        if not asked:
            with pytest.raises(NoSuchTurn):
                branch.conversation.why()
        else:
            assert branch.conversation.why().turn == asked[-1]
            turn = asked[which % len(asked)]
            calls = branch.conversation.why(turn).calls
            assert len(calls) == asked.count(turn), "of a part only the calls that are on this path"
            for call in calls:
                assert call.unknown == () or call.error is not None
                assert call.shared is not None or call.error is not None, "a prompt was not made again to the byte"
        if tried:
            report = branch.conversation.why(tried[which % len(tried)])
            assert report.outcome != "committed"

    @precondition(lambda self: self.renamed < 2)
    @rule(number=numbers)
    def rename(self, number: int) -> None:
        self.renamed += 1
        conversation = self._branch(number).conversation
        name = f"{conversation.id}-{next(self.numbers)}"  # another example may have left the same number behind
        assert conversation.rename(name).name == conversation.name == name

    # Branches.

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=numbers, at=numbers)
    def fork(self, number: int, at: int) -> None:
        source = self._branch(number)
        turns = [commit for commit in source.path if commit.turn and not commit.part]
        if at == 0 or not turns:
            fork, path = source.conversation.fork(callbacks=[self.told]), source.path
        else:
            turn = turns[at % len(turns)]
            fork = source.conversation.fork(at=turn.id, callbacks=[self.told])
            path = source.upto(source.before(turn) + turn.size)
        self.branches.append(Branch(fork, path))

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=numbers, to=numbers)
    def rewind(self, number: int, to: int) -> None:
        branch = self._branch(number)
        turns = [commit for commit in branch.path if commit.turn]
        if not turns:
            return
        turn = turns[to % len(turns)]
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.rewind(before=turn.id)
            return
        aside = branch.conversation.rewind(before=turn.id)
        self._set_aside(branch, aside, branch.upto(branch.before(turn)))

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=numbers, which=st.integers(0, 99), rewinds=st.booleans())
    def cut(self, number: int, which: int, rewinds: bool) -> None:
        """A fork or a rewind into the middle of a turn, or of turns that were brought."""
        branch = self._branch(number, lambda one: len(one.cuts()) > 1)
        cuts = branch.cuts()
        if not cuts or (rewinds and branch.waiting is not None):
            return
        count = cuts[which % len(cuts)]
        place = branch.events[count - 1]
        if rewinds:
            self._set_aside(branch, branch.conversation.rewind(at=place), branch.upto(count))
        else:
            fork = branch.conversation.fork(at=place, callbacks=[self.told])
            self.branches.append(Branch(fork, branch.upto(count)))

    def _set_aside(self, branch: Branch, aside: Conversation | None, path: tuple[Commit, ...]) -> None:
        """Moves the model of a branch to a path, where it has left something unless that goes on from its own."""
        old = Branch(branch.conversation, branch.path)
        new = Branch(branch.conversation, path)
        common = shared(old, new)
        assert (aside is not None) == (common < len(old.events)), "what the new path has not got is set aside"
        if aside is None:
            if common < len(new.events):
                branch.own_from = len(new.events)
            branch.path = path
            return
        opened = Conversation.open(aside.id, agent=branch.conversation.agent, store="memory:", callbacks=[self.told])
        aside.close()
        kept = Branch(opened, branch.path)
        is_back = common == len(new.events)
        # What was spent on the rest goes along; on another branch's path, all of it does. Where some of it is not in
        # one piece, it is not divided.
        stays = new.events if is_back and common >= branch.own_from else []
        kept.own = branch.own - {str(event.id) for event in stays}
        kept.own_from = branch.own_from
        branch.own -= kept.own
        branch.own_from = branch.own_from if stays else common
        branch.path = path
        self.branches.append(kept)

    @precondition(lambda self: 1 < len(self.branches) < BRANCHES)
    @rule(number=numbers, which=numbers)
    def keep(self, number: int, which: int) -> None:
        branch = self._branch(number)
        kept = self._branch(which, lambda one: one is not branch)
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.keep(kept.conversation)
            return
        if kept is branch:
            with pytest.raises(CannotKeep):
                branch.conversation.keep(kept.conversation)
            return
        self._set_aside(branch, branch.conversation.keep(kept.conversation), kept.path)

    @rule(number=numbers, other=numbers, what=st.sampled_from(["answer", "summary", "turns"]))
    def bring(self, number: int, other: int, what: BroughtAs) -> None:
        here = self._branch(number, lambda one: one.waiting is None)
        there = self._branch(other, lambda one: exchanges(one.events[shared(here, one) :]))
        if not (here.stored and there.stored):
            return
        common = shared(here, there)
        found = exchanges(there.events[common:])
        answered = [one for one in found if one[-1].kind == "assistant_message"]
        chosen = [one for one in answered if one[0].kind == "user_message" and not self._stands_in(here, common, one)]
        if here.waiting is not None:
            with pytest.raises(TurnOpen):
                here.conversation.bring(there.conversation, what)
            return
        if not {"answer": answered, "summary": found, "turns": chosen}[what]:
            with pytest.raises(BringRefused):
                here.conversation.bring(there.conversation, what)
            return
        before = self.total
        self.todo[:] = [self._reply("In short.")] if what == "summary" else []
        done = here.conversation.bring(there.conversation, what)
        words = [pair for one in chosen for pair in spoken(one)]
        if what != "turns":
            ((role, text),) = words = spoken(done.events)
            assert role == "user"
            assert text.endswith("In short." if what == "summary" else spoken(answered[-1])[-1][1])
            asked = [text for role, text in spoken(answered[-1]) if role == "user"] if what == "answer" else []
            assert all(question in text for question in asked)
        assert done.left_out == (len(found) - len(chosen) if what == "turns" else 0)
        commit = self._committed(here, words, here.state, self.total - before, turn=False)
        assert (done.id, list(done.events), done.usage) == (commit.id, list(commit.events), self.total - before)

    def _stands_in(self, here: Branch, common: int, exchange: Iterable[Event]) -> bool:
        """Whether a path has an exchange since the two part, as itself or as a copy: all of it, or one of its calls."""
        known = {self.root[str(event.id)] for event in here.events[common:]}
        is_known = [(event.kind, self.root[str(event.id)] in known) for event in exchange]
        return all(known for _, known in is_known) or ("tool_call", True) in is_known

    @rule(number=numbers, other=numbers)
    def diff(self, number: int, other: int) -> None:
        here, there = self._branch(number), self._branch(other)
        if not (here.stored and there.stored):
            return
        there = there if there is not here else self._branch(other + 1)
        found, common = here.conversation.diff(there.conversation), shared(here, there)
        assert (found.shared, found.ancestor) == (common, str(here.events[common - 1].id) if common else None)
        for side, branch, shown in (
            (found.a, here, [pair.a for pair in found.pairs]),
            (found.b, there, [pair.b for pair in found.pairs]),
        ):
            since = [(one, branch.before(one)) for one in branch.path if branch.before(one) + len(one.events) > common]
            turns = [turn for turn in shown if turn is not None]
            assert (side.turns, side.notes) == (
                sum(commit.turn for commit, _ in since),
                sum(not commit.turn for commit, _ in since),
            )
            for turn, (commit, begun) in zip(turns, since, strict=True):
                events = commit.events[max(0, common - begun) :]
                asked = [text for role, text in spoken(events) if role == "user"]
                assert (turn.id, turn.partial) == (commit.id, commit.part or begun < common)
                assert (turn.first, turn.last) == (str(events[0].id), str(events[-1].id))
                assert turn.input == "\n\n".join(asked)
                called = [event.id for event in events if event.kind == "tool_call"]
                assert [call.event for call in turn.calls if call.event is not None] == called
                assert turn.usage == (Usage() if commit.part else self._cost(events))
            assert side.events == len(branch.events) - common
            assert side.usage == sum((turn.usage for turn in turns), Usage())
        before = state_after(here.events[:common])
        states = [{key: str(value) for key, value in state.items()} for state in (before, here.state, there.state)]
        assert [(one.key, one.before, one.a, one.b) for one in found.state] == [
            (key, *values)
            for key in sorted({key for state in states for key in state})
            if len(set(values := [state.get(key) for state in states])) > 1
        ]

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=numbers, chosen=st.integers(0, 99))
    def substitute(self, number: int, chosen: int) -> None:
        """A fork in which a call has another result."""
        source = self._branch(number)
        events = source.events
        calls = [event for event in events if event.kind == "tool_call"]
        if not calls:
            return
        call = calls[chosen % len(calls)]
        response = (call.turn, call.envelope.response)
        count = 1 + max(n for n, one in enumerate(events) if (one.turn, one.envelope.response) == response)
        rest = list(itertools.takewhile(lambda event: event.kind not in AFTER_RESULTS, events[count:]))
        ids = [one.envelope.call_id for one in calls if (one.turn, one.envelope.response) == response]
        id = call.envelope.call_id or ""
        fork = source.conversation.fork(at=call, results={id: "other"}, state={"d": 0}, callbacks=[self.told])
        path = source.upto(count)
        branch = Branch(fork, path)
        kept = [event for event in rest if event.envelope.call_id in ids]
        words, copies = [], []
        for event in kept:
            if event.envelope.call_id != id:
                words += spoken([event])
                copies.append(event)
            elif event.kind == "tool_result":
                words.append(("tool", "other"))
        state = state_after([*branch.events, *copies]) | {"d": 0}
        commit = self._committed(branch, words, state, Usage(), turn=False)
        assert [
            (event.kind, self.root[str(event.id)]) for event in commit.events if event.envelope.origin is not None
        ] == [(event.kind, self.root[str(event.id)]) for event in copies]
        new = [event.body for event in commit.events if event.envelope.origin is None]
        (substituted,) = [body for body in new if isinstance(body, ResultSubstituted)]
        assert self.places[substituted.origin] == next(
            str(event.id) for event in rest if event.kind == "tool_result" and event.envelope.call_id == id
        )
        self.branches.append(branch)

    # What must always hold.

    @invariant()
    def every_conversation_is_as_the_model_has_it(self) -> None:
        for branch in self.branches:
            conversation = branch.conversation
            events = conversation.events()
            assert events == branch.events
            assert conversation.agent_state() == branch.state
            assert conversation.status() == ("awaiting_approval" if branch.waiting else "idle")
            assert not NO_CALLS.after(event.envelope for event in events), "a call has no result"
            turns = [turn for turn in conversation.turns(limit=1000).items if turn.outcome == "committed"]
            assert [(turn.id, turn.partial) for turn in turns] == [
                (one.id, one.part) for one in branch.path if one.turn
            ]

    @invariant()
    def every_token_is_counted_once(self) -> None:
        for branch in self.branches:
            figures = branch.conversation.stats()
            own = self._cost(event for event in branch.events if str(event.id) in branch.own)
            tries = sum((one.usage for one in (*branch.tries, branch.waiting) if one is not None), branch.beside)
            assert figures.family == self.total
            assert (figures.spent, figures.inherited) == (own + tries, self._cost(branch.events) - own)
            assert branch.own <= {str(event.id) for event in branch.events}

    def verified(self) -> None:
        """Each conversation is as it was written."""
        for branch in self.branches:
            found = branch.conversation.verify()
            assert found.ok, found.flaws


TestConversations = Conversations.TestCase
TestConversations.settings = settings(
    max_examples=14, stateful_step_count=24, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
