"""Brings: what a branch has said since the common ancestor becomes part of another branch's path, as one note.

The note begins with a `Brought` event that says where it came from. No cost is copied: what the branch has spent stays
there. The note is refused if content was erased while it was made, so that nothing that was erased comes back; then it
is made anew. Tests: tests/conversation/test_bring.py, test_bring_faults.py.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.condense.branch_summary import INSTRUCTIONS, question, summariser
from forkpoint.backend.bring import BringOptions, BringReport
from forkpoint.backend.results import words
from forkpoint.engine.branches.branch_path import BranchPath, ancestor_of, are_unchanged, read_branch_path
from forkpoint.engine.budgets.admission import admission_beside
from forkpoint.engine.conversation_cache import check_idle, check_revision
from forkpoint.engine.idempotency import bring_key
from forkpoint.engine.paid_notes import PaidNote
from forkpoint.engine.turns.journal import staged
from forkpoint.engine.turns.path import read_places
from forkpoint.errors import BringRefused, NotFound, Stale, Unpaired
from forkpoint.events import AssistantMessage, Brought, Event, ModelCalled, NewEvent, Text, Usage, UserMessage
from forkpoint.history.branches.dialogue import COPIED, copies, dialogue, names_of
from forkpoint.ids import new_id
from forkpoint.llm.answers import Failed
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.manifest import manifest_of
from forkpoint.llm.prompt.rendering import render
from forkpoint.store.values import Committed, IdempotencyKey, StoredConversation
from forkpoint.threads.shield import finished

if TYPE_CHECKING:
    from forkpoint.engine.resources import Resources

_log = logging.getLogger("forkpoint")


class _Request(Struct, frozen=True):
    """What is to be brought into a conversation, as it was asked for. ``agent`` is its own, for a summary."""

    id: str
    options: BringOptions
    agent: Agent | None
    key: IdempotencyKey | None


class _Branch(Struct, frozen=True):
    """What a branch has since the common ancestor, with the origin and the chain digest of each event, by its id."""

    record: StoredConversation
    events: tuple[Event, ...]
    origins: dict[str, str]
    digests: dict[str, str]


class _Summary(Struct, frozen=True):
    """What a model has said of some events."""

    events: tuple[Event, ...]
    text: str
    model: str


class _Paid:
    """The summary that a model was asked for, and what is not counted yet of all that it cost."""

    def __init__(self) -> None:
        self.summary: _Summary | None = None
        self.owed = Usage()
        self.reserved: str | None = None  # the id under which budgets have reserved what is owed

    def handed_over(self) -> Usage:
        """What is not counted yet, for whoever counts it from here on."""
        owed, self.owed, self.reserved = self.owed, Usage(), None
        return owed


class _Made(Struct, frozen=True):
    """The events that are to follow in a note, and the events that they were made of."""

    events: list[NewEvent]
    sources: Sequence[Event]
    left_out: int = 0


class Brings:
    """Brings what branches have said into other branches of their family."""

    def __init__(self, resources: "Resources") -> None:
        self._store = resources.store
        self._models = resources.models
        self._records = resources.records
        self._planner = resources.planner
        self._charges = resources.charges
        self._notes = resources.paid_notes
        self._locks: dict[str, tuple[anyio.Lock, list[None]]] = {}

    async def bring(self, id: str, options: BringOptions, agent: Agent | None) -> BringReport:
        """Brings something, or returns what an earlier request with the same key has brought."""
        asked = _Request(id, options, agent, bring_key(options.key, options.branch, options.what))
        async with self._alone(id):  # so that a request that is sent twice at once asks a model once
            if (before := await self._brought_before(asked)) is not None:
                return before
            paid = _Paid()
            try:
                committed = await self._bring(asked, paid)
            finally:
                reserved = paid.reserved
                self._charges.add(id, paid.handed_over(), reserved)  # what no note has
                await self._charges.settle()
        # It may be the note of another process, which others have gone on from.
        self._records.moved_elsewhere(committed)
        return await self._report(committed.turn)

    async def _bring(self, asked: _Request, paid: _Paid) -> Committed:
        while True:
            erasures = await self._store.erasure_count()
            here = await read_branch_path(self._store, asked.id)
            check_revision(here.record, asked.options.if_revision)
            await check_idle(self._store, here.record)  # before anybody is paid for a summary
            there = await read_branch_path(self._store, (await self._records.find(asked.options.branch)).id)
            _check(asked, here, there)
            try:
                branch = await self._since(asked, here, there)
                made = await self._made(asked, here, branch, paid)
            except NotFound:  # an event that was there a moment ago
                if await are_unchanged(self._store, here, there):
                    raise
                continue
            # What stands here decides which turns are brought. To a message it does not matter.
            revision = here.record.revision if asked.options.what == "turns" else asked.options.if_revision
            events = (_header(asked, branch, made), *made.events)
            reserved = paid.reserved or new_id()
            note = PaidNote(reserved, events, paid.handed_over(), revision, asked.key, erasures)
            try:
                return await finished(partial(self._notes.write, asked.id, note))
            except (Stale, Unpaired):  # it has moved, or something was erased: all is looked at again
                _log.info("a note is made anew, since the store has changed meanwhile")

    async def _since(self, asked: _Request, here: BranchPath, there: BranchPath) -> _Branch:
        """What the branch has since the common ancestor. Raises `BringRefused` if that is nothing."""
        ancestor = ancestor_of(here, there)
        after = 0 if ancestor is None else ancestor.ordinal
        id = there.record.id
        events = await self._store.events(id, at=there.head, after=after)
        if not events:
            raise _refused(asked, "it has nothing since the two part")
        digests = await self._store.digests(id, at=there.head, after=after)
        origins = await read_places(self._store, events)
        by_id = {str(event.id): digest.hex() for event, digest in zip(events, digests, strict=True)}
        return _Branch(there.record, tuple(events), origins, by_id)

    async def _made(self, asked: _Request, here: BranchPath, branch: _Branch, paid: _Paid) -> _Made:
        match asked.options.what:
            case "answer":
                return _answer(asked, branch)
            case "turns":
                return await self._turns(asked, here, branch)
            case "summary":
                return await self._summary(asked, here, branch, paid)

    async def _turns(self, asked: _Request, here: BranchPath, branch: _Branch) -> _Made:
        """Copies of all whole exchanges of a branch that do not stand here already."""
        shared = branch.events[0].id.ordinal - 1
        ours = await self._store.events(here.record.id, at=here.head, after=shared)
        places = await read_places(self._store, ours)
        known = {name for event in ours for name in names_of(event, places)}
        found = list(dialogue(branch.events))
        chosen = [one for one in found if one.is_whole and not one.stands_in(known, branch.origins)]
        if not chosen:
            raise _refused(asked, "it has no whole exchange since the two part that does not stand here already")
        sources = [event for exchange in chosen for event in exchange.events]
        return _Made(copies(chosen, branch.origins), sources, left_out=len(found) - len(chosen))

    async def _summary(self, asked: _Request, here: BranchPath, branch: _Branch, paid: _Paid) -> _Made:
        """A message with what a model says of a branch. The model is not asked twice about the same events."""
        events = tuple(event for event in branch.events if event.kind in COPIED)
        if not events:
            raise _refused(asked, "nothing was said there since the two part")
        summary = paid.summary
        if summary is None or summary.events != events:
            assert asked.agent is not None, "whoever asks for a summary has an agent at hand"
            agent = self._planner.agent_for(here.record.settings, asked.agent, asked.options.allow)
            summary = paid.summary = await self._asked(asked, events, summariser(agent.condenser, agent.llm), paid)
        who = _name_of(branch.record)
        said = f"A summary of what {who} has done since the two part, written by {summary.model}:\n\n{summary.text}"
        return _Made([NewEvent(UserMessage((Text(said),)))], events)

    async def _asked(self, asked: _Request, events: tuple[Event, ...], llm: LLM, paid: _Paid) -> _Summary:
        self._charges.check()
        llm.key()
        said = staged([NewEvent(UserMessage((Text(question(events, llm)),)))])
        prompt = render(manifest_of(llm, instructions=INSTRUCTIONS), said)
        context = CallContext(own_identity(f"{asked.id} brought"), self._store.tenant)
        called: list[ModelCalled] = []
        admit = await admission_beside(self._store, asked.id, new_id())
        paid.reserved = None if admit is None else admit.id  # the note will have this id
        try:
            outcome = await self._models.call(llm, prompt, context, record=called.append, admit=admit)
        finally:
            paid.owed += sum((one.usage for one in called), Usage())
        if isinstance(outcome, Failed):
            raise outcome.error
        text, is_cut = outcome.answer.text.strip(), outcome.answer.finish in {"length", "filter"}
        if not text or is_cut:
            raise _refused(asked, f"the model's summary {'was cut' if is_cut else 'is empty'}, and of no use")
        return _Summary(events, text, llm.model)

    async def _brought_before(self, asked: _Request) -> BringReport | None:
        """What an earlier request with this key has brought, even if the branch is gone by now."""
        made = None if asked.key is None else await self._store.made_with(asked.key, "turn", asked.id)
        return None if made is None else await self._report(made.id)

    async def _report(self, note: str) -> BringReport:
        record, events = await self._store.whole_turn(note)
        committed = tuple(event for event in events if isinstance(event, Event))
        header = committed[0].body
        assert isinstance(header, Brought), "an erasure frees the keys of what it erases"
        return BringReport(
            record.id, record.conversation, header.conversation, header.what, committed, record.usage, header.left_out
        )

    @asynccontextmanager
    async def _alone(self, id: str) -> AsyncIterator[None]:
        """Lets one request after the other bring something into a conversation."""
        lock, waiting = self._locks.setdefault(id, (anyio.Lock(), []))
        waiting.append(None)
        try:
            async with lock:
                yield
        finally:
            waiting.pop()
            if not waiting:
                self._locks.pop(id, None)


def _check(asked: _Request, here: BranchPath, there: BranchPath) -> None:
    """Raises `BringRefused` if nothing may be brought from there to here."""
    if there.record.id == here.record.id:
        raise _refused(asked, "it is the same conversation")
    if there.record.family != here.record.family:
        raise _refused(asked, "it is of another family, and an erasure there could not reach what was brought")
    if here.record.head.open_calls:
        raise _refused(asked, "calls of the client's tools are open here; answer them first")
    if there.record.head.open_calls and asked.options.what != "answer":
        raise _refused(asked, "calls of the client's tools are open there; answer them first")


def _header(asked: _Request, branch: _Branch, made: _Made) -> NewEvent:
    """The event that says where the others come from."""
    return NewEvent(
        Brought(
            conversation=branch.record.id,
            what=asked.options.what,
            count=len(made.events),
            origins=tuple(branch.origins[str(event.id)] for event in made.sources),
            digests=tuple(branch.digests[str(event.id)] for event in made.sources),
            left_out=made.left_out,
        )
    )


def _answer(asked: _Request, branch: _Branch) -> _Made:
    """A message with the last finished answer of a branch, and with what was asked."""
    found = [one for one in dialogue(branch.events) if isinstance(one.events[-1].body, AssistantMessage)]
    if not found:
        raise _refused(asked, "it has no finished answer since the two part")
    last = found[-1]
    response = (last.events[-1].turn, last.events[-1].envelope.response)
    asking = [event for event in last.events if isinstance(event.body, UserMessage)]
    answering = [
        event
        for event in last.events
        if isinstance(event.body, AssistantMessage) and (event.turn, event.envelope.response) == response
    ]
    who = _name_of(branch.record)
    question = _said(asking)
    said = f"The answer of {who}:\n\n{_said(answering)}"
    if question:
        said = f"From {who}. There this was asked:\n\n{question}\n\nAnd this was answered:\n\n{_said(answering)}"
    return _Made([NewEvent(UserMessage((Text(said),)))], [*asking, *answering])


def _said(events: Sequence[Event]) -> str:
    parts = [event.body.parts for event in events if isinstance(event.body, UserMessage | AssistantMessage)]
    return "\n\n".join(words(one) for one in parts)


def _name_of(record: StoredConversation) -> str:
    """The branch in words, for a model and for whoever reads the message."""
    title = f", {record.title!r}" if record.title else ""
    kind = {"sub_agent": "sub-agent", "aside": "branch set aside", "side": "side"}.get(record.lineage.kind, "branch")
    return f"the {kind} {record.name} of this conversation{title}"


def _refused(asked: _Request, why: str) -> BringRefused:
    return BringRefused(asked.id, asked.options.branch, why)
