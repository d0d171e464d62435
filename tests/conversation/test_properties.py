"""Whatever is done to conversations, in whatever order, they agree with a model that is a list of commits each."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import msgspec
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
from forkpoint.events import BroughtAs, Event, StateChange, ToolResult, Usage
from forkpoint.history.pairing import NO_CALLS, SAID
from forkpoint.llm import TextPiece
from forkpoint.testing import Fault, Reply, ScriptedCall

BRANCHES = 5  # more would only take longer

Words = list[tuple[str, str]]


def spoken(events: list[Event]) -> Words:
    """Who said what; a denial in a word, however it is put to the model."""
    denied = {event.id for event in events if isinstance(event.body, ToolResult) and event.body.status == "denied"}
    return [pair for event in events for pair in ([("tool", "denied")] if event.id in denied else said([event]))]


class Commit(Struct, frozen=True):
    """A turn or a note on a path: what was said in it, and the state after it."""

    id: str
    words: tuple[tuple[str, str], ...]
    state: tuple[tuple[str, int], ...]
    turn: bool = True
    part: bool = False  # it is not all of a turn, so that the model is to speak after it


class Try(Struct, frozen=True):
    """A turn that did not commit: what stands in its journal, and where it began."""

    id: str
    base: tuple[Commit, ...]
    message: str
    words: tuple[tuple[str, str], ...]
    state: tuple[tuple[str, int], ...]
    waits: bool = False  # for somebody's approval, also after it was discarded


class Branch:
    """A conversation beside the list that it should be."""

    def __init__(self, conversation: Conversation, path: tuple[Commit, ...] = ()) -> None:
        self.conversation = conversation
        self.path = path
        self.tries: list[Try] = []
        self.waiting: Try | None = None

    @property
    def words(self) -> Words:
        return [pair for commit in self.path for pair in commit.words]

    @property
    def state(self) -> dict[str, int]:
        return dict(self.path[-1].state) if self.path else {}

    @property
    def last_try(self) -> Try | None:
        """The one that retry() and resume() mean: the newest that began where the conversation stands."""
        here = [one for one in (*self.tries, self.waiting) if one is not None and one.base == self.path]
        return max(here, key=lambda one: one.id, default=None)

    @property
    def is_unfinished(self) -> bool:
        """Whether the path ends in a part of a turn, with nothing but notes behind it."""
        return next((one.part for one in reversed(self.path) if one.part or one.turn), False)

    def committed(self, id: str, words: Words, state: dict[str, int], *, turn: bool = True) -> None:
        self.path = (*self.path, Commit(id, tuple(words), tuple(sorted(state.items())), turn))


def shared(here: Branch, there: Branch) -> int:
    """How many commits two paths share."""
    both = zip(here.path, there.path, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], both))


def events_of(branch: Branch, n: int) -> list[Event]:
    """The events of a turn on a path, which has all of it."""
    turn = branch.conversation.turn(branch.path[n].id)
    assert not turn.partial
    return [event for event in turn.events if isinstance(event, Event)]


def ends_exchange(events: list[Event], n: int) -> bool:
    """Whether the last result of an exchange stands here."""
    if events[n].kind != "tool_result":
        return False
    said = next((event.kind for event in events[n + 1 :] if event.kind in SAID), None)
    return said != "tool_result"


def part_of(branch: Branch, n: int, events: list[Event]) -> Commit:
    """The part of a turn that these events of it are."""
    state = dict(branch.path[n - 1].state) if n else {}
    for event in events:
        if isinstance(event.body, StateChange):
            state |= {key: int(value) for key, value in event.body.set}
    return Commit(branch.path[n].id, tuple(spoken(events)), tuple(sorted(state.items())), turn=False, part=True)


class Plan(Struct, frozen=True):
    """What the model asks for, response by response: which keys its calls set."""

    calls: tuple[tuple[str, ...], ...]

    def words(self, message: str) -> Words:
        found = [("user", message)] if message else []
        for keys in self.calls:
            found += [("assistant", "So."), *(("tool", f"set {key}") for key in keys)]
        return found


plans = st.builds(
    Plan,
    calls=st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).map(tuple), max_size=2).map(
        tuple
    ),
)


class Conversations(RuleBasedStateMachine):
    """Turns that commit, fail, are cancelled or wait, and everything that can be done with them and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.todo: list[Reply] = []
        self.total = Usage()
        self.heard = threading.Event()
        self.branches: list[Branch] = []

    @initialize()
    def begin(self) -> None:
        @tool
        def put(ctx: ToolContext, key: str, value: int) -> str:
            """Sets a key."""
            ctx.state[key] = value
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
        self.branches.append(Branch(Conversation(agent, store="memory:", callbacks=[told])))

    def teardown(self) -> None:
        self.verified()
        for branch in reversed(self.branches):
            branch.conversation.close()

    # What the model will say, and what it costs.

    def _reply(self, text: str = "", calls: tuple[ScriptedCall, ...] = (), fault: Fault | None = None) -> Reply:
        usage = Usage(calls=1, input=next(self.numbers), output=1)
        self.total += usage
        return Reply(text, calls=calls, usage=usage, fault=fault)

    def _asking(self, plan: Plan, state: dict[str, int]) -> list[Reply]:
        replies = []
        for keys in plan.calls:
            values = {key: next(self.numbers) for key in keys}
            state |= values
            made = (ScriptedCall("put", f'{{"key": "{key}", "value": {value}}}') for key, value in values.items())
            replies.append(self._reply("So.", tuple(made)))
        return replies

    def _branch(self, number: int) -> Branch:
        return self.branches[number % len(self.branches)]

    def _run(
        self, branch: Branch, plan: Plan, ending: str, run: Callable[[], Turn], message: str, retry: bool = False
    ) -> None:
        """Runs a turn from the head and keeps book of how it ended."""
        state = dict(branch.state)
        self.todo[:] = self._asking(plan, state)
        words = plan.words(message)
        if branch.waiting is not None and retry:
            branch.tries.append(branch.waiting)
            branch.waiting = None
        match ending:
            case "ok":
                self.todo.append(self._reply("Done."))
                turn = run()
                assert turn.outcome == "committed"
                branch.committed(turn.id, [*words, ("assistant", "Done.")], state)
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
                words += [("assistant", "Please.")]
                branch.waiting = Try(turn.id, branch.path, message, tuple(words), tuple(state.items()), waits=True)
                return
        assert self.todo == []
        branch.tries.append(Try(id, branch.path, message, tuple(words), tuple(state.items())))

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

    @rule(number=st.integers(0, 9), plan=plans, ending=st.sampled_from(["ok", "ok", "fail", "cancel", "wait"]))
    def run(self, number: int, plan: Plan, ending: str) -> None:
        branch = self._branch(number)
        message = f"message {next(self.numbers)}"
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.run(message)
            return
        self._run(branch, plan, ending, lambda: branch.conversation.run(message), message)

    @rule(number=st.integers(0, 9), plan=plans, ending=st.sampled_from(["ok", "fail", "cancel", "wait"]))
    def retry(self, number: int, plan: Plan, ending: str) -> None:
        branch = self._branch(number)
        if (last := branch.last_try) is None:
            with pytest.raises(NoSuchTurn):
                branch.conversation.retry()
            return
        self._run(branch, plan, ending, branch.conversation.retry, last.message, retry=True)

    @rule(number=st.integers(0, 9), works=st.booleans())
    def resume(self, number: int, works: bool) -> None:
        branch = self._branch(number)
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
            self._go_on(branch, last, branch.conversation.resume, works)

    def _go_on(
        self, branch: Branch, last: Try, act: Callable[[], Turn], works: bool, more: Words | None = None
    ) -> None:
        words = [*last.words, *(more or [])]
        if last in branch.tries:
            branch.tries.remove(last)
        self.todo[:] = [self._reply("Done.") if works else self._reply("x", fault=Fault("overloaded"))]
        if works:
            turn = act()
            assert (turn.id, turn.outcome) == (last.id, "committed")
            branch.committed(turn.id, [*words, ("assistant", "Done.")], dict(last.state))
        else:
            with pytest.raises(TurnFailed):
                act()
            branch.tries.append(Try(last.id, last.base, last.message, tuple(words), last.state))

    @precondition(lambda self: any(branch.waiting for branch in self.branches))
    @rule(number=st.integers(0, 9), act=st.sampled_from(["approve", "deny", "discard"]), works=st.booleans())
    def decide(self, number: int, act: str, works: bool) -> None:
        branch = [one for one in self.branches if one.waiting is not None][number % self._waiting]
        last, branch.waiting = branch.waiting, None
        assert last is not None
        if act == "discard":
            assert branch.conversation.discard().outcome == "cancelled"
            branch.tries.append(last)
            return
        result = "was approved" if act == "approve" else "denied"
        decide = branch.conversation.approve if act == "approve" else lambda: branch.conversation.deny(reason="no")
        self._go_on(branch, last, decide, works, [("tool", result)])

    @property
    def _waiting(self) -> int:
        return sum(branch.waiting is not None for branch in self.branches)

    # Between turns.

    @rule(number=st.integers(0, 9), key=st.sampled_from("abcd"), remove=st.booleans())
    def update_state(self, number: int, key: str, remove: bool) -> None:
        branch, value = self._branch(number), next(self.numbers)
        changes = {"remove": [key]} if remove else {"set": {key: value}}
        if branch.waiting is not None:
            if not remove or key in branch.state:
                with pytest.raises(TurnOpen):
                    branch.conversation.update_state(**changes)
            return
        state = dict(branch.state)
        branch.conversation.update_state(**changes)
        if remove and key not in state:
            return
        if remove:
            del state[key]
        else:
            state[key] = value
        branch.committed(f"note {value}", [], state, turn=False)

    @rule(number=st.integers(0, 9), works=st.booleans())
    def ask(self, number: int, works: bool) -> None:
        conversation = self._branch(number).conversation
        self.todo[:] = [self._reply("Aside.", fault=None if works else Fault("overloaded"))]
        if works:
            assert conversation.ask("?").text == "Aside."
        else:
            with pytest.raises(ForkpointError):
                conversation.ask("?")

    @rule(number=st.integers(0, 9), which=st.integers(0, 9))
    def why(self, number: int, which: int) -> None:
        branch = self._branch(number)
        turns = [commit.id for commit in branch.path if commit.turn]
        tried = [one.id for one in branch.tries]
        if not turns:
            with pytest.raises(NoSuchTurn):
                branch.conversation.why()
        else:
            assert branch.conversation.why().turn == turns[-1]
            for call in branch.conversation.why(turns[which % len(turns)]).calls:
                assert call.unknown == () or call.error is not None
                assert call.shared is not None or call.error is not None, "a prompt was not made again to the byte"
        if tried:
            report = branch.conversation.why(tried[which % len(tried)])
            assert report.outcome != "committed"

    # Branches.

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=st.integers(0, 9), at=st.integers(0, 9))
    def fork(self, number: int, at: int) -> None:
        source = self._branch(number)
        turns = [n for n, commit in enumerate(source.path) if commit.turn]
        if at == 0 or not turns:
            fork, path = source.conversation.fork(callbacks=[self.told]), source.path
        else:
            until = turns[at % len(turns)]
            fork = source.conversation.fork(at=source.path[until].id, callbacks=[self.told])
            path = source.path[: until + 1]
        self.branches.append(Branch(fork, path))

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=st.integers(0, 9), to=st.integers(0, 9))
    def rewind(self, number: int, to: int) -> None:
        branch = self._branch(number)
        turns = [n for n, commit in enumerate(branch.path) if commit.turn]
        if not turns:
            return
        until = turns[to % len(turns)]
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.rewind(before=branch.path[until].id)
            return
        aside = branch.conversation.rewind(before=branch.path[until].id)
        assert aside is not None
        agent = branch.conversation.agent
        opened = Conversation.open(aside.id, agent=agent, store="memory:", callbacks=[self.told])
        aside.close()
        self.branches.append(Branch(opened, branch.path))
        branch.path = branch.path[:until]

    @precondition(lambda self: 1 < len(self.branches) < BRANCHES)
    @rule(number=st.integers(0, 9), which=st.integers(0, 9))
    def keep(self, number: int, which: int) -> None:
        branch, kept = self._branch(number), self._branch(which)
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.keep(kept.conversation)
            return
        if kept is branch:
            with pytest.raises(CannotKeep):
                branch.conversation.keep(kept.conversation)
            return
        aside = branch.conversation.keep(kept.conversation)
        is_left = kept.path[: len(branch.path)] != branch.path
        assert (aside is not None) == is_left, "what stood there is set aside if the branch has not got it"
        if aside is not None:
            opened = Conversation.open(
                aside.id, agent=branch.conversation.agent, store="memory:", callbacks=[self.told]
            )
            aside.close()
            self.branches.append(Branch(opened, branch.path))
        branch.path = kept.path

    @rule(number=st.integers(0, 9))
    def rename(self, number: int) -> None:
        conversation, name = self._branch(number).conversation, f"name-{next(self.numbers)}"
        assert conversation.rename(name).name == conversation.name == name

    @rule(number=st.integers(0, 9), other=st.integers(0, 9), what=st.sampled_from(["answer", "summary", "turns"]))
    def bring(self, number: int, other: int, what: BroughtAs) -> None:
        here, there = self._branch(number), self._branch(other)
        if not (here.path and there.path):
            return
        since = [pair for commit in there.path[shared(here, there) :] for pair in commit.words]
        if here.waiting is not None:
            with pytest.raises(TurnOpen):
                here.conversation.bring(there.conversation, what)
            return
        if not since:
            with pytest.raises(BringRefused):
                here.conversation.bring(there.conversation, what)
            return
        self.todo[:] = [self._reply("In short.")] if what == "summary" else []
        try:
            done = here.conversation.bring(there.conversation, what)
        except BringRefused:
            assert what != "summary"
            return
        words = spoken(list(done.events))
        if what == "turns":
            assert set(words) <= set(since)
        else:
            assert [role for role, _ in words] == ["user"]
        here.committed(done.id, words, here.state, turn=False)

    @rule(number=st.integers(0, 9), other=st.integers(0, 9))
    def diff(self, number: int, other: int) -> None:
        here, there = self._branch(number), self._branch(other)
        if not (here.path and there.path):
            return
        found, common = here.conversation.diff(there.conversation), shared(here, there)
        for side, branch in ((found.a, here), (found.b, there)):
            since = branch.path[common:]
            assert (side.turns, side.notes) == (
                sum(commit.turn for commit in since),
                sum(not commit.turn for commit in since),
            )
        shown = [pair.a for pair in found.pairs], [pair.b for pair in found.pairs]
        for of_side, branch in zip(shown, (here, there), strict=True):
            turns = [turn for turn in of_side if turn is not None]
            asked = [text for commit in branch.path[common:] for role, text in commit.words if role == "user"]
            assert "\n\n".join(turn.input for turn in turns if turn.input) == "\n\n".join(asked)
        assert {one.key for one in found.state} >= {
            key for key in {*here.state, *there.state} if here.state.get(key) != there.state.get(key)
        }

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=st.integers(0, 9), which=st.integers(0, 9), cut=st.integers(0, 9), rewinds=st.booleans())
    def cut_a_turn(self, number: int, which: int, cut: int, rewinds: bool) -> None:
        """A fork or a rewind into the middle of a turn."""
        source = self._branch(number)
        turns = [n for n, commit in enumerate(source.path) if commit.turn]
        if not turns or (rewinds and source.waiting is not None):
            return
        until = turns[which % len(turns)]
        events = events_of(source, until)
        places = [n for n, event in enumerate(events) if event.kind == "user_message" or ends_exchange(events, n)]
        if not places:
            return
        place = places[cut % len(places)]
        half = part_of(source, until, events[: place + 1])
        path = (*source.path[:until], half)
        if not rewinds:
            fork = source.conversation.fork(at=events[place], callbacks=[self.told])
            self.branches.append(Branch(fork, path))
            return
        aside = source.conversation.rewind(at=events[place])
        assert aside is not None
        opened = Conversation.open(aside.id, agent=source.conversation.agent, store="memory:", callbacks=[self.told])
        aside.close()
        self.branches.append(Branch(opened, source.path))
        source.path = path

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=st.integers(0, 9), which=st.integers(0, 9), chosen=st.integers(0, 9))
    def substitute(self, number: int, which: int, chosen: int) -> None:
        """A fork in which a call has another result."""
        source = self._branch(number)
        turns = [n for n, commit in enumerate(source.path) if commit.turn]
        calls = [(n, event) for n in turns for event in events_of(source, n) if event.kind == "tool_call"]
        if not calls:
            return
        until, call = calls[chosen % len(calls)]
        events = events_of(source, until)
        last = max(n for n, event in enumerate(events) if event.envelope.response == call.envelope.response)
        ids = {event.envelope.call_id for event in events[: last + 1] if event.kind == "tool_call"}
        ended = next(n for n in range(last, len(events)) if ends_exchange(events, n))
        kept = [
            event
            for event in events[last + 1 : ended + 1]
            if event.envelope.call_id in ids and event.envelope.call_id != call.envelope.call_id
        ]
        half = part_of(source, until, [*events[: last + 1], *kept])
        results = [event for event in events[last + 1 : ended + 1] if event.kind == "tool_result"]
        words = list(half.words[: len(half.words) - sum(event.kind == "tool_result" for event in kept)])
        words += [
            ("tool", "other") if event.envelope.call_id == call.envelope.call_id else spoken([event])[0]
            for event in results
        ]
        id = call.envelope.call_id or ""
        fork = source.conversation.fork(at=call, results={id: "other"}, state={"d": 0}, callbacks=[self.told])
        state = tuple(sorted((dict(half.state) | {"d": 0}).items()))
        path = (*source.path[:until], replace(half, words=tuple(words), state=state))
        self.branches.append(Branch(fork, path))

    @rule(number=st.integers(0, 9), plan=plans, ending=st.sampled_from(["ok", "fail", "cancel", "wait"]))
    def go_on(self, number: int, plan: Plan, ending: str) -> None:
        branch = self._branch(number)
        if branch.waiting is not None:
            with pytest.raises(TurnOpen):
                branch.conversation.go_on()
        elif not branch.is_unfinished:
            with pytest.raises(NothingToRun):
                branch.conversation.go_on()
        else:
            self._run(branch, plan, ending, branch.conversation.go_on, "")

    # What must always hold.

    @invariant()
    def every_conversation_is_as_the_model_has_it(self) -> None:
        for branch in self.branches:
            conversation = branch.conversation
            events = conversation.events()
            assert spoken(events) == branch.words
            assert conversation.agent_state() == branch.state
            assert conversation.status() == ("awaiting_approval" if branch.waiting else "idle")
            assert not NO_CALLS.after(event.envelope for event in events), "a call has no result"

    @invariant()
    def every_token_is_counted_once(self) -> None:
        stats = [branch.conversation.stats() for branch in self.branches]
        assert {one.family for one in stats} <= {self.total}
        assert sum((one.spent for one in stats), Usage()) == self.total
        for branch, figures in zip(self.branches, stats, strict=True):
            parts = [
                turn.partial for turn in branch.conversation.turns(limit=1000).items if turn.outcome == "committed"
            ]
            assert parts == [one.part for one in branch.path if one.turn or one.part]
            assert min(msgspec.structs.astuple(figures.spent)) >= 0

    def verified(self) -> None:
        """Each conversation is as it was written."""
        for branch in self.branches:
            found = branch.conversation.verify()
            assert found.ok, found.flaws


TestConversations = Conversations.TestCase
TestConversations.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
