"""Condenses a path after a turn: a model writes a summary, which is committed as a note after the turn.

By then the turn has committed and callbacks were told, but its caller still waits. A failure here fails nothing else:
it is logged, its cost is counted, and the path stays as it was.
Tests: tests/conversation/test_condensing.py, test_condense.py.
"""

import logging
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.condense.condenser import Condenser, Condenses, asked_by
from forkpoint.agent.condense.cut import Cut, tokens_counted
from forkpoint.backend.results import Turn
from forkpoint.engine.budgets.admission import BesideAdmission, admission_beside
from forkpoint.engine.conversation_cache import check_idle, check_revision
from forkpoint.engine.paid_notes import PaidNote
from forkpoint.engine.turns.journal import staged
from forkpoint.engine.turns.path import newest
from forkpoint.errors import BadArgument, Stale
from forkpoint.events import Condensation, Event, ModelCalled, NewEvent, SkillActivated, Text, Usage, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm.answers import Complete, Failed
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.manifest import manifest_of
from forkpoint.llm.prompt.rendering import render
from forkpoint.store.values import Committed, StoredConversation
from forkpoint.threads.shield import finished

if TYPE_CHECKING:
    from forkpoint.engine.resources import Resources

_log = logging.getLogger("forkpoint")

_SECONDS = 45.0  # that a summary may take: whoever asked for the turn waits that long at most
_REMEMBERED = 1024  # conversations
_AGAIN = 0.1  # by how much a path has grown before it is tried again


class _InVain(Struct, frozen=True):
    """How far a path was when it could not be condensed."""

    events: int
    tokens: int


class PathCondenser:
    """Condenses the paths of a store's conversations."""

    def __init__(self, resources: "Resources") -> None:
        self._store = resources.store
        self._models = resources.models
        self._prompts = resources.prompts
        self._records = resources.records
        self._planner = resources.planner
        self._charges = resources.charges
        self._in_vain: dict[str, _InVain] = {}
        self._notes = resources.paid_notes
        self._owed: set[str] = set()  # conversations whose last prompt was too long

    def owe(self, id: str) -> None:
        """A prompt was too long for its model: the path is condensed before the next turn, whatever its limit."""
        self._owed.add(id)

    async def after(self, agent: Agent, turn: Turn, committed: Committed, kept_from: int) -> None:
        """Condenses a path after a turn, if that is due. Raises nothing but cancellation."""
        id = committed.conversation
        self._owed.discard(id)
        try:
            if agent.condenser is not None and (note := await self._if_due(agent, turn, committed, kept_from)):
                self._records.moved(note)
        finally:
            await self._charges.settle()

    async def if_owed(self, agent: Agent, id: str) -> None:
        """Condenses a path whose last prompt was too long. Raises nothing but cancellation."""
        if id not in self._owed or agent.condenser is None:
            return
        try:
            if (note := await self._at_once(agent, await self._store.read(id))) is not None:
                self._records.moved(note)
        except Exception as error:
            _failed(error)
        finally:
            await self._charges.settle()

    async def condense(
        self, id: str, agent: Agent, *, focus: str | None, if_revision: int | None, allow: frozenset[str]
    ) -> Condensation | None:
        """Condenses a path because somebody asks for it. None if nothing can be forgotten."""
        self._charges.check()
        record = await self._store.read(id)
        check_revision(record, if_revision)
        await check_idle(self._store, record)  # before anybody is paid for a summary
        agent = self._planner.agent_for(record.settings, agent, allow)
        agent.llm.key()
        try:
            note = await self._at_once(agent, record, focus)
        finally:
            await self._charges.settle()
        if note is None:
            check_revision(await self._store.read(id), record.revision)  # somebody was faster than the summary
            return None
        self._records.moved(note)
        made = await newest(self._store, id, "condensation", note.head.position)
        return made.body if made is not None and isinstance(made.body, Condensation) else None

    async def _if_due(self, agent: Agent, turn: Turn, committed: Committed, kept_from: int) -> Committed | None:
        condenser, id, head = agent.condenser, committed.conversation, committed.head
        assert condenser is not None
        count, context = head.ordinal - kept_from + 1, agent.llm.context_tokens
        tokens = 0
        try:
            counted = tokens_counted([event for event in turn.events if isinstance(event, Event)])
            if counted is None:  # nobody has counted them: all that is sent is known, though not what it comes to
                counted = (await self._prompts.at(id, head, agent.manifest)).blocks.size // 4
            tokens = counted
            if not condenser.reached(count, tokens, context=context) or self._is_too_early(id, count, tokens):
                return None
            events = await self._store.events(id, at=head.position, after=kept_from - 1)
            cut = condenser.due(events, tokens, context=context)
            if cut is None:
                return None
            note = await self._condense(agent, condenser, id, cut, committed.revision)
        except Exception as error:
            _failed(error)
            note = None
        self._remember(id, None if note is not None else _InVain(count, tokens))
        return note

    async def _at_once(self, agent: Agent, record: StoredConversation, focus: str | None = None) -> Committed | None:
        """Condenses a path however short it is. An agent without a condenser lets its own model write the summary."""
        id, condenser = record.id, agent.condenser or Condenser()
        self._owed.discard(id)
        kept_from = (await self._store.state(id)).kept_from
        events = await self._store.events(id, at=record.head.position, after=kept_from - 1)
        cut = condenser.due(events, context=agent.llm.context_tokens, force=True)
        return None if cut is None else await self._condense(agent, condenser, id, cut, record.revision, focus)

    @property
    def unsettled(self) -> list[str]:
        """Conversations with a note of which the disk did not say whether it is there."""
        return self._notes.unsettled

    async def settle(self, id: str) -> None:
        """Writes a note once more of which the disk did not say whether it is there. Raises `StoreError` if it still
        does not."""
        if (error := await self._notes.settle(id)) is not None:
            _log.warning("a note was not written: %s", error)

    async def _condense(
        self, agent: Agent, condenser: Condenses, id: str, cut: Cut, revision: int, focus: str | None = None
    ) -> Committed | None:
        question = _focused(condenser.question(cut), focus)
        spent: list[ModelCalled] = []
        counted = False
        admit = await admission_beside(self._store, id, new_id())  # under the id of the note
        try:
            answer = None
            if question is not None:
                answer = await self._summary(agent, condenser, id, question, spent, admit)
            bodies = tuple(condenser.condensed(cut, answer))
            if not _is_a_condensation(bodies):
                _log.warning("a conversation was not condensed: the summary is of no use")
                return None
            used = sum((called.usage for called in spent), Usage())
            note = PaidNote(new_id() if admit is None else admit.id, tuple(map(NewEvent, bodies)), used, revision)
            counted = True  # with the note, or by it
            return await finished(lambda: self._write(id, note))
        finally:
            if not counted:
                used = sum((called.usage for called in spent), Usage())
                self._charges.add(id, used, None if admit is None else admit.id)

    async def _summary(
        self,
        agent: Agent,
        condenser: Condenses,
        id: str,
        question: str,
        spent: list[ModelCalled],
        admit: BesideAdmission | None,
    ) -> str | None:
        llm, instructions = asked_by(condenser, agent.llm)
        manifest = manifest_of(llm, instructions=instructions)
        prompt = render(manifest, staged([NewEvent(UserMessage((Text(question),)))]))
        context = CallContext(own_identity(f"{id} condensed"), self._store.tenant)
        with anyio.move_on_after(_SECONDS):
            match await self._models.call(llm, prompt, context, record=spent.append, admit=admit):
                case Failed(error=error):
                    raise error
                case Complete(answer=answer):
                    is_cut = answer.finish in {"length", "filter"}  # such a summary is not kept
                    return None if is_cut else answer.text
        return None

    async def _write(self, id: str, note: PaidNote) -> Committed | None:
        """The note. None if another was faster, and then what it cost is counted all the same."""
        try:
            return await self._notes.write(id, note)
        except Stale:
            _log.info("a conversation has gone on while it was condensed")
            return None

    def _remember(self, id: str, in_vain: _InVain | None) -> None:
        self._in_vain.pop(id, None)
        if in_vain is not None:
            self._in_vain[id] = in_vain
            if len(self._in_vain) > _REMEMBERED:
                del self._in_vain[next(iter(self._in_vain))]

    def _is_too_early(self, id: str, events: int, tokens: int) -> bool:
        last = self._in_vain.get(id)
        return last is not None and (events < last.events * (1 + _AGAIN) and tokens < last.tokens * (1 + _AGAIN))


def _focused(question: str | None, focus: str | None) -> str | None:
    """The question, with what the summary should look at. Raises `BadArgument` if no model is asked."""
    if focus is None:
        return question
    if question is None:
        raise BadArgument("condense()", "focus", "the agent's condenser asks no model; leave it out")
    return f"{question}\n\nWhoever asks for the notes says what they should look at above all:\n{focus}"


def _is_a_condensation(bodies: tuple[object, ...]) -> bool:
    """Whether this can be the note: anybody can write a condenser."""
    first, rest = bodies[:1], bodies[1:]
    return any(isinstance(one, Condensation) for one in first) and all(isinstance(one, SkillActivated) for one in rest)


def _failed(error: Exception) -> None:
    """Whatever it was, nothing else fails with it."""
    _log.warning("a conversation was not condensed: %s", error)
