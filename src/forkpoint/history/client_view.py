"""Seen: what a client could see of a path, and which path a client's own list of messages continues.

A client that sends its whole list each time knows nothing of reasoning, tools of ours or positions. So both sides are
brought to **exchanges**, by one rule: a question, as a digest of its text, and the text that came back. The same
question with another answer is an edit of that answer, and the list is cut before it. White space, and thoughts that a
client shows within the answer or strips from it, make no difference: `answered_text`.

The client's own tools make exchanges too: it saw the call, and asked with its results. On a path that it lived through
this was a turn. In a list that was taken over the same stands in the middle of a turn, where no path may end: such an
exchange is there to be compared, and is not ``safe``.
"""

import operator
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.events import (
    AnyBody,
    AssistantMessage,
    Content,
    Event,
    Imported,
    Part,
    Position,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
    kind_of,
)
from forkpoint.history.fences import unfenced

ERASED = b""
"""What stands for a text that nobody can read any more. No text has this digest."""


class Seen(Struct, frozen=True, gc=False):
    """One exchange of a path, as the client could see it."""

    said: bytes  # what was asked
    answered: bytes  # what was shown, if all words of the turn were
    end: Position  # its last event; of a turn's last exchange, the turn's last event
    turn: str
    safe: bool = True  # whether a path may end there
    last: bytes | None = None  # what was shown if only the last words were, being others; some answers have a form

    def is_answer(self, answer: bytes) -> bool:
        return answer in (self.answered, self.last)


class ClientExchange(Struct, frozen=True, gc=False):
    """One exchange as the client's list has it."""

    said: bytes
    answered: bytes
    upto: int = 0  # how many messages of the list are over after it


class Match(Struct, frozen=True):
    """Where a client's list continues a path."""

    branch: int  # which of the paths
    start: int  # the first exchange of the path that the list has; above 0 for a client that trims
    length: int  # how many exchanges of the list are those of the path
    at: Position | None  # where the path is cut; None is the root
    is_head: bool  # nothing was asked after it, so the path goes on at its head, whatever notes stand there
    exact: int  # of how many exchanges the answers are the same too
    same: int = 0  # how many exchanges have the same answers before the first that was edited
    partly: int = 0  # of how many of these only by their last words, which may be all that was shown

    @property
    def is_exact(self) -> bool:
        """Whether every answer is the same, in all its words."""
        return self.exact == self.length and not self.partly


def seen(events: Iterable[Event]) -> list[Seen]:
    """The exchanges of a path. Whole turns can be folded one after the other: see `extended`."""
    found: list[Seen] = []
    for turn, of_turn in groupby(events, operator.attrgetter("turn")):
        path = list(of_turn)
        if path[0].kind == "brought":  # of what other branches have said the client knows nothing
            continue
        exchanges = list(_exchanges(_steps(path)))
        for one in exchanges:
            end = path[-1] if one is exchanges[-1] else path[one.last]
            answered, last = one.answered, one.last_words
            found.append(Seen(one.said, answered, end.id, turn, one.safe, None if last == answered else last))
    return found


def extended(before: Sequence[Seen], events: Iterable[Event]) -> list[Seen]:
    """The exchanges of a path that was known, with those of the turns that were committed since."""
    return [*before, *seen(events)]


def told(messages: Iterable[AnyBody]) -> list[ClientExchange]:
    """The exchanges of a client's list. The question at its end is not one yet: the turn answers it."""
    steps = ((kind_of(body), body, getattr(body, "call_id", None), True, None) for body in messages)
    return [ClientExchange(one.said, one.answered, one.last + 1) for one in _exchanges(steps) if one.is_answered]


def match(told: Sequence[ClientExchange], branches: Sequence[Sequence[Seen]]) -> Match:
    """The longest stretch of a path that a list begins with. There is one branch at least, the current path first.

    A list that begins where a path does may go on in another way: it is cut where they part. A window, a list that
    begins later on a path, is a claim that more was said before; to believe it brings back what the client did not
    send. So a window counts if the whole list is one. A client that trims *and* has something of its own in the list
    is believed only if no path begins as its list does, and if its first exchange stands on the path with the very same
    answer: a question alone ("continue") may stand anywhere, an answer it can only have from there. In doubt there is
    no match: the list then becomes a path of its own, of exactly what the client sent.

    Of the exchanges found, the first with another answer was edited by the client: ``cut`` of the match ends before it.
    """
    best = Match(0, 0, 0, None, is_head=not branches[0], exact=0)
    if not told:
        return best
    asked, answers = [one.said for one in told], [one.answered for one in told]
    paths = [_Path(number, path) for number, path in enumerate(branches)]
    for path in paths:
        best = _better(best, path.match(answers, path.shared(asked), 1))
        if best.is_head and best.is_exact and best.length == len(told):
            return best  # the plain continuation; no later branch and no window can be better
    if not best.is_exact or best.length < len(told):
        for path in paths:
            length, starts = path.windows(asked)
            if length == len(told):
                best = _better(best, path.match(answers, length, starts))
    if not best.length:
        for path in paths:
            length, starts = path.windows(asked, first_answer=answers[0])
            best = _better(best, path.match(answers, length, starts))
    return best


def cut(found: Match, path: Sequence[Seen]) -> Match:
    """The match up to the first answer that the client has edited; itself, if no answer was. ``path`` is the branch's.

    What the client did not send (``start`` above 0) stays before it.
    """
    if found.same == found.length:
        return found
    end = found.start + found.same
    at = path[end - 1].end if end else None
    return replace(found, length=found.same, at=at, is_head=False, exact=found.same, partly=0)


def first_said(messages: Iterable[AnyBody]) -> bytes | None:
    """The digest of the first question of a list, answered or not; None if it has none."""
    steps = ((kind_of(body), body, getattr(body, "call_id", None), True, None) for body in messages)
    return next((one.said for one in _exchanges(steps)), None)


def after(answer: Iterable[AnyBody], branches: Sequence[Sequence[Seen]]) -> Match:
    """Where a list goes on that has no question before the new one: behind the answer that it begins with.

    Only if that is the very last of a path: a client that keeps the last answer and no more. Otherwise at the root.
    """
    spoken = _Exchange()
    for body in answer:
        if isinstance(body, ToolCall):
            spoken.handed.append(body.call_id)
        elif isinstance(body, AssistantMessage):
            spoken.speak(body)
    for number, path in enumerate(branches if spoken.is_final else ()):
        if path and path[-1].is_answer(spoken.answered):
            return Match(number, len(path), 0, path[-1].end, is_head=True, exact=0)
    return match((), branches)


# What both sides are compared by.


def said_text(text: str) -> bytes:
    """The digest of a question, however its white space and its accents are written."""
    return _digest("text", _plain(text))


def said_parts(parts: Iterable[Part]) -> bytes:
    """The digest of a question: of its text alone, or if it has none, of what kinds of things were shown instead."""
    parts = tuple(parts)
    if text := _plain(" ".join(part.text for part in parts if isinstance(part, Text))):
        return _digest("text", text)
    return _digest("media", "".join(f"[{part.media_type}]" for part in parts if not isinstance(part, Text)))


def said_results(call_ids: Iterable[str]) -> bytes:
    """The digest of what a client asks with the results of its own tools, and no words."""
    return _digest("results", "\n".join(sorted(call_ids)))


def answered_text(text: str, handed: Iterable[str] = ()) -> bytes:
    """The digest of an answer, and of the calls that the client was handed with it: often they are all there is.

    White space has no part in it: a stream does not show where its pieces were joined. Nor have thoughts that stand in
    the answer: some clients strip them before they send it again, and others write them there. Nor has a code fence
    around all of it: an answer that has a form is shown without.
    """
    words = "".join(unicodedata.normalize("NFC", unfenced(without_thoughts(text))).split())
    return _digest("answer", "\n".join((words, *sorted(handed))))


def without_thoughts(text: str) -> str:
    """A text without the blocks in which thoughts are shown; the text itself if there is nothing else in it."""
    if "<" not in text:
        return text
    kept, place = [], 0
    unclosed: set[str] = set()  # ends that do not come any more, so that nobody looks for them again and again
    for block in _THOUGHTS.finditer(text):
        end = f"</{block[1]}>"
        if block.start() < place or end in unclosed:
            continue
        if (closed := text.find(end, block.end())) < 0:
            unclosed.add(end)
            continue
        kept.append(text[place : block.start()])
        place = closed + len(end)
    words = "".join((*kept, text[place:]))
    return words if words.strip() else text


_THOUGHTS = re.compile(
    r'<(think|thinking|thought|reasoning|details)(?:(?<!details)|(?<=details) type="reasoning"[^<>]{0,500})>'
)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _digest(of: str, text: str) -> bytes:
    # Half of it is enough to tell texts apart, and many are kept. JSON can have surrogates, which are no text.
    return sha256(f"{of} {text}".encode("utf-8", "surrogatepass")).digest()[:16]


# From events, or from a client's messages, to exchanges.

_Step: TypeAlias = tuple[str, Content, str | None, bool, int | None]
"""A kind, a body, a call's id; whether it came from elsewhere; and which of the turn's responses it is of."""


class _Exchange:
    """An exchange as it comes in."""

    def __init__(self) -> None:
        self.parts: list[Part] | None = []  # of the question; None if one of its messages was erased
        self.results: list[str] = []  # calls that the client has answered
        self.spoken: list[str] | None = []  # None if one of the answers was erased
        self.handed: list[str] = []  # calls that the client was shown, being of its own tools
        self.response: int | None = None  # the last one
        self.earlier = 0  # how many of what was spoken is of earlier ones
        self.is_answered = False
        self.is_foreign = False  # whether what answered came from elsewhere
        self.is_final = False  # whether the model's last word was an answer, not a call
        self.last = 0  # the number of its last step
        self.safe = True  # a turn's end always is

    @property
    def said(self) -> bytes:
        if self.parts is None:
            return ERASED
        return said_results(self.results) if self.results and not self.parts else said_parts(self.parts)

    @property
    def answered(self) -> bytes:
        return ERASED if self.spoken is None else answered_text("".join(self.spoken), self.handed)

    @property
    def last_words(self) -> bytes:
        """The same of the last response alone."""
        return ERASED if self.spoken is None else answered_text("".join(self.spoken[self.earlier :]), self.handed)

    @property
    def is_asked(self) -> bool:
        return self.parts is None or bool(self.parts or self.results)

    def ask(self, body: Content) -> None:
        if not isinstance(body, UserMessage):
            self.parts = None
        elif self.parts is not None:
            self.parts.extend(body.parts)

    def answer(self, foreign: bool, response: int | None) -> None:
        """A model wrote something: words, a thought or a call."""
        if response != self.response:
            self.response, self.earlier = response, len(self.spoken or ())
        self.is_answered = True
        self.is_foreign = self.is_foreign or foreign

    def speak(self, body: Content) -> None:
        self.is_final = True
        if not isinstance(body, AssistantMessage):
            self.spoken = None
        elif self.spoken is not None:
            self.spoken.extend(part.text for part in body.parts if isinstance(part, Text))


def _steps(turn: Iterable[Event]) -> Iterator[_Step]:
    foreign = 0
    for event in turn:
        kind = event.kind if event.envelope.steer is None else "steered"  # the client has neither said nor seen it
        yield kind, event.body, event.envelope.call_id, foreign > 0, event.envelope.response
        foreign = event.body.count if isinstance(event.body, Imported) else max(foreign - 1, 0)


def _exchanges(steps: Iterable[_Step]) -> Iterator[_Exchange]:
    """The exchanges of one turn, or of a list. In what came from elsewhere each question begins one; what a turn
    itself was asked is one question, and the calls of its own model are nobody else's."""
    now = _Exchange()
    ours: set[str | None] = set()  # calls of the turn's own model
    waiting: set[str | None] = set()  # all calls without a result
    for number, (kind, body, call_id, foreign, response) in enumerate(steps):
        # The client's results, or its next question. One that was never answered belongs to what follows.
        results = kind == "tool_result" and call_id not in ours and not _is_missing(body)
        next_question = kind == "user_message" and (foreign or now.is_foreign)
        if now.is_answered and (results or next_question):
            if now.is_asked:
                now.safe = not waiting
                yield now
            now = _Exchange()
        match kind:
            case "user_message":
                now.ask(body)
            case "assistant_message":
                now.answer(foreign, response)
                now.speak(body)
            case "reasoning":
                now.answer(foreign, response)
            case "tool_call":
                now.answer(foreign, response)
                now.is_final = False
                waiting.add(call_id)
                if foreign or (isinstance(body, ToolCall) and body.client):
                    now.handed.append(call_id or "")
                if not foreign:
                    ours.add(call_id)
            case "tool_result":
                now.is_final = False
                if results:
                    now.results.append(call_id or "")
                waiting.discard(call_id)
            case "system_message" if now.is_final and not foreign:
                now.spoken, now.earlier = [], 0  # the answer did not have the form asked for, and was not shown
            case _ if not foreign:
                continue  # it has no part in any exchange
        now.last = number
    if now.is_asked:
        yield now


def _is_missing(body: Content) -> bool:
    """Whether this says that the client did not answer a call."""
    return isinstance(body, ToolResult) and body.status == "not_answered"


# Matching.


class _Path:
    """A path to be compared with lists.

    A set of places is a number with a bit for each. So all windows are tried at once, and that the same was said ten
    thousand times costs ten thousand short steps, not their square.
    """

    def __init__(self, number: int, exchanges: Sequence[Seen]) -> None:
        self.number = number
        self.exchanges = exchanges

    def match(self, answers: Sequence[bytes], length: int, starts: int) -> Match | None:
        """The match of this many exchanges with the most answers that are the same; of several, the last."""
        if not length:
            return None
        starts, exact = self._most_exact(answers[:length], starts)
        start = starts.bit_length() - 1
        end = start + length
        whole = sum(one.answered == told for one, told in zip(self.exchanges[start:end], answers, strict=False))
        at, is_head = self.exchanges[end - 1].end, end == len(self.exchanges)
        same = length if exact == length else self._same(answers[:length], start)
        return Match(self.number, start, length, at, is_head, exact, same, exact - whole)

    def _same(self, answers: Sequence[bytes], start: int) -> int:
        """How many answers from a place on are the same, up to a place where a path may end. An erased one passes."""
        same = 0
        for one, told in zip(self.exchanges[start:], answers, strict=False):
            if not (one.is_answer(told) or one.answered == ERASED):
                break
            same += 1
        if same == len(answers):
            return same  # where the match ends, a path may end
        while same and not self.exchanges[start + same - 1].safe:
            same -= 1
        return same

    def shared(self, asked: Sequence[bytes]) -> int:
        """How many questions a list and the path both begin with, up to a place where a path may end."""
        return self._common(asked, 0)

    def windows(self, asked: Sequence[bytes], first_answer: bytes | None = None) -> tuple[int, int]:
        """How many of a list's first questions stand on the path in a row, later than at its start; and from where on.

        With ``first_answer``: only from where the first of them was answered so.
        """
        longest, found = 0, 0
        if asked[0] not in self.said[1:]:  # as most often; it spares the index
            return longest, found
        starts = ~1 if first_answer is None else self._answers.at(first_answer) & ~1
        for number, question in enumerate(asked):
            starts &= self._asked.at(question) >> number
            if not starts & (starts - 1):  # one place is left, or none
                length = self._common(asked, starts.bit_length() - 1) if starts else 0
                return (length, starts) if length > longest else (longest, found)
            if safe := starts & ~(self._unsafe >> number):
                longest, found = number + 1, safe
        return longest, found

    def _common(self, asked: Sequence[bytes], start: int) -> int:
        path = self.said[start : start + len(asked)]
        length = len(path)
        if path != asked[:length]:
            length = next(number for number, question in enumerate(path) if question != asked[number])
        while length and not self.exchanges[start + length - 1].safe:
            length -= 1
        return length

    def _most_exact(self, answers: Sequence[bytes], starts: int) -> tuple[int, int]:
        """From which of the places on the most answers are the same, and how many."""
        if not starts & (starts - 1):
            start = starts.bit_length() - 1
            ours = self.exchanges[start : start + len(answers)]
            return starts, sum(map(Seen.is_answer, ours, answers))
        starts, most = _most(starts, answers, self._answers)
        return _most(starts, answers, self._whole_answers)[0], most

    @cached_property
    def said(self) -> list[bytes]:
        return [one.said for one in self.exchanges]

    @cached_property
    def _asked(self) -> "_Places":
        return _Places(self.said)

    @cached_property
    def _answers(self) -> "_Places":
        return _Places((one.answered for one in self.exchanges), (one.last for one in self.exchanges))

    @cached_property
    def _whole_answers(self) -> "_Places":
        return _Places(one.answered for one in self.exchanges)

    @cached_property
    def _unsafe(self) -> int:
        return sum(1 << number for number, one in enumerate(self.exchanges) if not one.safe)


class _Places:
    """Where each digest stands in a row of them."""

    def __init__(self, *rows: Iterable[bytes | None]) -> None:
        self._numbers: dict[bytes, list[int]] = {}
        self._bits: dict[bytes, int] = {}
        for row in rows:
            for number, digest in enumerate(row):
                if digest is not None:
                    self._numbers.setdefault(digest, []).append(number)

    def at(self, digest: bytes) -> int:
        bits = self._bits.get(digest)
        if bits is None:
            bits = self._bits[digest] = sum(1 << number for number in set(self._numbers.get(digest, ())))
        return bits


def _most(starts: int, answers: Sequence[bytes], places: _Places) -> tuple[int, int]:
    """From which of these places on the most answers stand in a row of them, and how many."""
    # A count for each place: the first number has the lowest binary digit of all the counts, and so on.
    digits: list[int] = []
    for number, answer in enumerate(answers):
        carry = starts & (places.at(answer) >> number)
        for place, digit in enumerate(digits):
            digits[place], carry = digit ^ carry, digit & carry
            if not carry:
                break
        if carry:
            digits.append(carry)
    most = 0
    for place in reversed(range(len(digits))):
        if starts & digits[place]:
            starts &= digits[place]
            most |= 1 << place
    return starts, most


def _better(best: Match, other: Match | None) -> Match:
    return best if other is None or _rank(other) <= _rank(best) else other


def _rank(match: Match) -> tuple[int, ...]:
    is_first, whole = match.branch == 0, match.exact - match.partly
    return (
        match.same,
        match.length,
        match.exact,
        whole,
        match.start == 0,
        match.is_head,
        is_first,
        match.start,
        -match.branch,
    )
