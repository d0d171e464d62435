"""Whatever a family does, in whatever order, each branch sees the sub-agents of its history, and each of them agrees
with a model that is a list of what it was told."""

import itertools
import math

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct
from tests.conversation.support.agents import scripted
from tests.conversation.support.team import close, obedient, orders, send, spawn, told, wait

from forkpoint import Conversation
from forkpoint.agent import Agent, SubAgents
from forkpoint.events import Event, Text, Usage, UserMessage
from forkpoint.testing import Heard, Reply

BRANCHES = 4  # more would only take longer


class Told(Struct, frozen=True):
    """Something that a sub-agent was told: by a turn of a parent, or by somebody himself."""

    text: str
    time: int
    by_parent: bool = True


class Child:
    """A sub-agent's conversation: whose it is, and what it was told."""

    def __init__(self, owner: "Branch", before: tuple[str, ...], told: tuple[Told, ...] = ()) -> None:
        self.owner = owner
        self.before = before  # what its parent had been told, if it was forked
        self.told = told

    @property
    def words(self) -> list[str]:
        return [*self.before, *(one.text for one in self.told)]


class Known(Struct, frozen=True):
    """A sub-agent as a branch knows it: the first so many things that it was told, none if no turn told it any."""

    child: Child
    known: int | None
    closed: bool = False


class Commit(Struct, frozen=True):
    """A turn or a note on a path: its id, its message, and the team after it."""

    id: str | None
    message: str | None
    team: dict[str, Known]


class Branch:
    """A conversation beside the list that it should be."""

    def __init__(
        self, conversation: Conversation, path: tuple[Commit, ...] = (), source: "Branch | None" = None, made: int = 0
    ) -> None:
        self.conversation = conversation
        self.path = path
        self.source = source  # the branch that it parted from, and when
        self.made = made

    @property
    def team(self) -> dict[str, Known]:
        return dict(self.path[-1].team) if self.path else {}

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(one.message for one in self.path if one.message is not None)

    @property
    def turns(self) -> list[int]:
        return [n for n, commit in enumerate(self.path) if commit.id is not None]

    def committed(self, id: str | None, message: str | None, team: dict[str, Known]) -> None:
        self.path = (*self.path, Commit(id, message, team))

    def reached(self, one: Known) -> Child:
        """Whom a message goes to: the sub-agent itself, or a fork of it where this path knows it."""
        child = one.child
        since = child.told[one.known or 0 :]
        if child.owner is self and not any(told.by_parent for told in since):
            return child
        if one.known is not None:
            return Child(self, child.before, child.told[: one.known])
        parted = self
        while parted.source not in (None, child.owner) and parted is not child.owner:
            parted = parted.source
        until = math.inf if parted is child.owner else parted.made
        later = [n for n, one in enumerate(child.told) if one.by_parent or one.time > until]
        return Child(self, child.before, child.told[: min(later, default=len(child.told))])


def spoken(events: list[Event]) -> list[str]:
    """What users said."""
    return [
        "".join(part.text for part in event.body.parts if isinstance(part, Text))
        for event in events
        if isinstance(event.body, UserMessage)
    ]


class Families(RuleBasedStateMachine):
    """Turns that spawn, send, wait and close; and all that can be done with a parent between them."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.costs = itertools.count(1)
        self.total = Usage()
        self.branches: list[Branch] = []

    @initialize()
    def begin(self) -> None:
        def model(heard: Heard) -> Reply:
            usage = Usage(calls=1, input=next(self.costs), output=1)
            self.total += usage
            reply = obedient(heard)
            return Reply(reply.text, calls=reply.calls, usage=usage)

        self.agent = Agent(scripted(model), sub_agents=SubAgents(most=4))
        self.branches.append(Branch(Conversation(self.agent, store="memory:")))
        branch = self.branches[0]
        branch.committed(branch.conversation.run("Hello").id, "Hello", {})
        self.spawn_from_outside(0)
        self.spawn(0, ["all"], "all")

    def teardown(self) -> None:
        for branch in reversed(self.branches):
            branch.conversation.close()

    def _branch(self, number: int) -> Branch:
        return self.branches[number % len(self.branches)]

    def _told(self, text: str, *, by_parent: bool = True) -> Told:
        return Told(text, next(self.numbers), by_parent)

    def _name(self) -> str:
        return f"n{next(self.numbers)}"

    # Turns.

    @rule(
        number=st.integers(0, 9),
        forks=st.lists(st.sampled_from(["none", "all", 1, 2]), min_size=1, max_size=3),
        waits=st.sampled_from(["all", "named", "same response", "first"]),
    )
    def spawn(self, number: int, forks: list[str | int], waits: str) -> None:
        branch, team = self._branch(number), self._branch(number).team
        names = [self._name() for _ in forks]
        tasks = [f"task {next(self.numbers)}" for _ in forks]
        calls = [spawn(task, nickname=name, fork=fork) for task, name, fork in zip(tasks, names, forks, strict=True)]
        first = [wait(first=True)] if waits == "first" else [wait(agents=names)] if waits == "named" else [wait()]
        rounds = [[*calls, *first]] if waits == "same response" else [calls, first]
        if waits != "all":
            rounds.append([wait()])
        message = orders(*rounds, say=self._name())
        turn = branch.conversation.run(message)
        room = 4 - sum(not one.closed for one in team.values())
        made = 0
        for call, task, name, fork in zip(turn.calls, tasks, names, forks, strict=False):
            assert (call.status == "done") == (made < room), "as many as there is room for"
            if call.status != "done":
                continue
            made += 1
            before = () if fork == "none" else (*branch.words, message)
            team[name] = Known(Child(branch, before, (self._told(task),)), 1)
        waited = [one.result or "" for one in turn.calls if one.tool == "wait_agent" and one.status == "done"]
        done = {one["agent"] for result in waited for one in told(result) if one["status"] == "done"}
        assert done >= set(names[:made])
        branch.committed(turn.id, message, team)

    @precondition(lambda self: any(branch.team for branch in self.branches))
    @rule(number=st.integers(0, 9), whom=st.integers(0, 9), twice=st.booleans())
    def send(self, number: int, whom: int, twice: bool) -> None:
        branch = [one for one in self.branches if one.team][number % sum(bool(one.team) for one in self.branches)]
        team = branch.team
        name = list(team)[whom % len(team)]
        texts = [f"more {next(self.numbers)}" for _ in range(1 + twice)]
        message = orders(*(round for text in texts for round in ([send(name, text)], [wait(agents=[name])])))
        turn = branch.conversation.run(message)
        if team[name].closed:
            assert {one.status for one in turn.calls if one.tool == "send_to_agent"} == {"failed"}
        else:
            child = branch.reached(team[name])
            child.told += tuple(map(self._told, texts))
            team[name] = Known(child, len(child.told))
            assert [one["answer"] for one in told(turn.text)] == [f"Did {texts[-1]}"]
        branch.committed(turn.id, message, team)

    @precondition(lambda self: any(branch.team for branch in self.branches))
    @rule(number=st.integers(0, 9), whom=st.integers(0, 9), inside=st.booleans())
    def close(self, number: int, whom: int, inside: bool) -> None:
        branch = [one for one in self.branches if one.team][number % sum(bool(one.team) for one in self.branches)]
        team = branch.team
        name = list(team)[whom % len(team)]
        one = team[name]
        team[name] = Known(one.child, one.known, closed=True)
        if inside:
            message = orders([close(name)], say=self._name())
            branch.committed(branch.conversation.run(message).id, message, team)
        else:
            assert branch.conversation.close_agent(name).status == "closed"
            if not one.closed:
                branch.committed(None, None, team)

    # From outside.

    @rule(number=st.integers(0, 9))
    def spawn_from_outside(self, number: int) -> None:
        branch = self._branch(number)
        team = branch.team
        if sum(not one.closed for one in team.values()) >= 4:
            return
        name, task = self._name(), f"task {next(self.numbers)}"
        with branch.conversation.spawn_agent(task, nickname=name) as child:
            child.run()
        team[name] = Known(Child(branch, (), (self._told(task, by_parent=False),)), None)
        branch.committed(None, None, team)

    @precondition(lambda self: any(branch.team for branch in self.branches))
    @rule(number=st.integers(0, 9), whom=st.integers(0, 9))
    def talk_to_it(self, number: int, whom: int) -> None:
        branch = [one for one in self.branches if one.team][number % sum(bool(one.team) for one in self.branches)]
        team = branch.team
        name = list(team)[whom % len(team)]
        one = team[name]
        if one.closed:
            return
        text = f"hint {next(self.numbers)}"
        assert branch.conversation.send_to_agent(name, text).text == f"Did {text}"
        child = branch.reached(one)
        if child is not one.child:
            team[name] = Known(child, one.known)
            branch.committed(None, None, team)
        child.told = (*child.told, self._told(text, by_parent=False))

    # Branches.

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=st.integers(0, 9), back=st.integers(0, 3))
    def fork(self, number: int, back: int) -> None:
        source = self._branch(number)
        if back == 0 or back > len(source.turns):
            self.branches.append(Branch(source.conversation.fork(), source.path, source, next(self.numbers)))
            return
        until = source.turns[-back]
        fork = source.conversation.fork(at=source.path[until].id)
        self.branches.append(Branch(fork, source.path[: until + 1], source, next(self.numbers)))

    @precondition(lambda self: len(self.branches) < BRANCHES)
    @rule(number=st.integers(0, 9), back=st.integers(1, 3))
    def rewind(self, number: int, back: int) -> None:
        branch = self._branch(number)
        if back > len(branch.turns):
            return
        until = branch.turns[-back]
        aside = branch.conversation.rewind(before=branch.path[until].id)
        assert aside is not None
        opened = Conversation.open(aside.id, agent=self.agent, store="memory:")
        aside.close()
        self.branches.append(Branch(opened, branch.path, branch, next(self.numbers)))
        branch.path = branch.path[:until]

    @rule(number=st.integers(0, 9))
    def open_again(self, number: int) -> None:
        branch = self._branch(number)
        again = Conversation.open(branch.conversation.id, agent=self.agent, store="memory:")
        branch.conversation.close()
        branch.conversation = again

    # What must always hold.

    @invariant()
    def every_branch_sees_the_team_of_its_history(self) -> None:
        for branch in self.branches:
            assert spoken(branch.conversation.events()) == list(branch.words)
            members = branch.conversation.list_agents()
            assert [one.nickname for one in members] == list(branch.team)
            for member, one in zip(members, branch.team.values(), strict=True):
                with Conversation.open(member.conversation, store="memory:", bind=False) as child:
                    assert spoken(child.events()) == one.child.words
                    assert child.info().parent == one.child.owner.conversation.id
                assert member.status == ("closed" if one.closed else "idle")
                assert member.answer == f"Did {one.child.told[-1].text}"

    @invariant()
    def every_token_is_counted_once(self) -> None:
        assert self.branches[0].conversation.stats().family == self.total


TestFamilies = Families.TestCase
TestFamilies.settings = settings(
    max_examples=25, stateful_step_count=10, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
