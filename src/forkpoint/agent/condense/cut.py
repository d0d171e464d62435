"""Where a path may be cut when it is condensed: never inside of a tool exchange, a response, or the newest turn.
Tests: tests/agent/test_condenser.py."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from forkpoint.agent.transcript import tokens_in
from forkpoint.errors import Unpaired
from forkpoint.events import Condensation, Envelope, Event, Gone, ModelCalled, SkillActivated, SystemMessage
from forkpoint.history.pairing import NO_CALLS, OpenCalls, safe_cuts

_SKILLS = 0.25  # of what is kept that skills may take which are said again
_SMALL = 1000  # tokens that they may take in any case, if the limit is not small itself


class Cut(Struct, frozen=True):
    """Where a path is to be condensed.

    - ``kept_from``: the ordinal of the first event that prompts still show.
    - ``forgotten``: the events that prompts have shown until now, and then show no more; not system messages, which
      they go on to show.
    - ``earlier``: what an earlier condensation said of everything before those.
    - ``skills``: those of the forgotten ones that are to be said again.
    - ``tokens``: about how many tokens are gained.
    - ``limit``: how many a prompt may have that shows what was forgotten.
    """

    kept_from: int
    forgotten: tuple[Event, ...]
    earlier: str | None = None
    skills: tuple[SkillActivated, ...] = ()
    tokens: int = 0
    limit: int = 0


def tokens_of(events: Sequence[Event]) -> int:
    """About how many tokens the next prompt of a path begins with.

    The provider has counted those of the last request and its answer. What came since is estimated, and so is
    everything if no model was asked since the path was last condensed.
    """
    return Shown(events).tokens


def tokens_counted(events: Sequence[Event]) -> int | None:
    """The same for the end of a path, such as its newest turn; None if no provider has counted any of it."""
    return Shown(events).counted


class Shown:
    """The part of a path that prompts show, and where it may be cut."""

    def __init__(self, events: Sequence[Event]) -> None:
        condensations = [event for event in events if event.kind == "condensation"]
        cuts = [one.body.kept_from for one in condensations if isinstance(one.body, Condensation | Gone)]
        self.kept_from = max((cut for cut in cuts if cut is not None), default=1)
        last = condensations[-1].body if condensations else None
        self.summary = last.summary if isinstance(last, Condensation) else None
        self.shown = [event for event in events if event.id.ordinal >= self.kept_from]
        self.sizes = [tokens_in(event.body) for event in self.shown]

    @property
    def count(self) -> int:
        return len(self.shown)

    @property
    def tokens(self) -> int:
        """About how many tokens the next prompt begins with."""
        counted = self.counted
        return sum(self.sizes) + tokens_in(self.summary or "") if counted is None else counted

    @property
    def counted(self) -> int | None:
        """The same: what the provider counted last, and about what came since. None if it has counted nothing."""
        for place in range(len(self.shown) - 1, -1, -1):
            body = self.shown[place].body
            if isinstance(body, Condensation):
                break
            if isinstance(body, ModelCalled) and body.error is None and body.usage.input:
                answer = self._answer_to(place)
                if answer is not None:
                    calls = max(1, body.usage.calls)  # attempts that failed were counted too
                    return (body.usage.input + body.usage.output) // calls + sum(self.sizes[answer + 1 :])
        return None

    @property
    def has_moved(self) -> bool:
        """Whether a model has said anything since the path was last condensed."""
        for event in reversed(self.shown):
            if isinstance(event.body, Condensation):
                return False
            if event.envelope.response is not None:
                return True
        return False

    def place(self, weights: Sequence[int], kept: float, gained: float) -> int | None:
        """Before which event to cut, so that what is kept weighs no more than that; None if too little is gained.

        If even the newest turn weighs more, that alone is kept. A cut where a turn begins is better than inside of one.
        """
        after = _sums(weights)  # what all from each event on weigh
        places = [place for place in self._places() if place]
        place = next((place for place in places if after[place] <= kept), places[-1] if places else None)
        if place is None:
            return None
        starts = {start for start, _ in self._commits()}
        place = next((one for one in places if one >= place and one in starts and after[one] >= kept / 2), place)
        stays = sum(weights[n] for n in range(place) if isinstance(self.shown[n].body, SystemMessage))
        gains = after[0] - after[place] - stays
        return place if gains > 0 and gains >= gained else None

    def cut(self, place: int, keep: float, limit: int) -> Cut:
        """The cut before an event."""
        staying = Condensation | SystemMessage  # an earlier summary is told apart
        forgotten = tuple(event for event in self.shown[:place] if not isinstance(event.body, staying))
        skills: dict[str, SkillActivated] = {}
        still = {event.body.name for event in self.shown[place:] if isinstance(event.body, SkillActivated)}
        room = max(keep * sum(self.sizes) * _SKILLS, min(_SMALL, limit / 10))
        for event in reversed(forgotten):  # the newest first, for there may not be room for all
            body = event.body
            if isinstance(body, SkillActivated) and body.name not in still and (size := tokens_in(body)) <= room:
                still.add(body.name)
                skills[body.name] = body
                room -= size
        again = tuple(reversed(skills.values()))
        gained = sum(tokens_in(event.body) for event in forgotten) - sum(map(tokens_in, again))
        return Cut(self.shown[place].id.ordinal, forgotten, self.summary, again, gained, limit)

    def _places(self) -> list[int]:
        """Before which events a prompt may begin: never inside of an exchange, a response, or the newest turn."""
        places: list[int] = []
        newest = 0
        calls: OpenCalls = NO_CALLS
        for start, end in self._commits():
            envelopes = [event.envelope for event in self.shown[start:end]]
            if any(envelope.kind == "user_message" or envelope.response is not None for envelope in envelopes):
                newest = start
            if not calls:
                places.append(start)
            try:
                inside = safe_cuts(envelopes, calls)
                calls = calls.after(envelopes).at_a_base()
            except Unpaired:  # the shown part begins inside of an exchange
                inside, calls = [], NO_CALLS
            places += [start + count for count in inside if 0 < count < end - start and _is_answered(envelopes, count)]
        return [place for place in places if place <= newest]

    def _answer_to(self, place: int) -> int | None:
        """Where the answer ends that a call of the model brought; None if it brought none, or not to this path."""
        turn, answer, response = self.shown[place].turn, None, None
        for n in range(place + 1, len(self.shown)):
            event = self.shown[n]
            if event.turn != turn or isinstance(event.body, ModelCalled):
                break
            if event.envelope.response is not None and response in (None, event.envelope.response):
                answer, response = n, event.envelope.response
        return answer

    def _commits(self) -> Iterator[tuple[int, int]]:
        """Where each turn or note begins and ends."""
        start = 0
        for n, event in enumerate(self.shown):
            if event.turn != self.shown[start].turn:
                yield start, n
                start = n
        if self.shown:
            yield start, len(self.shown)


def _is_answered(envelopes: Sequence[Envelope], count: int) -> bool:
    """Whether what is said last in the first so many is no question: that goes with its answer, or not at all."""
    said = (envelopes[n].kind for n in range(count - 1, -1, -1) if envelopes[n].role is not None)
    return next(said, None) in {"assistant_message", "tool_result"}


def _sums(weights: Sequence[int]) -> list[int]:
    """What all of the weights from each on come to."""
    total, sums = 0, [0]
    for weight in reversed(weights):
        total += weight
        sums.append(total)
    return sums[::-1]
