"""One chat completion in a conversation: which one it is for, where in it, with what, and then the turn.

Nothing is changed before the turn begins, and nothing but what a committed turn changes: a conversation that is made or
forked for a request is a draft until then; other settings, another place and what they set aside come with the commit.
"""

import logging
from typing import Literal

from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback, TurnStarted, Update
from forkpoint.backend.protocol import Draft, How
from forkpoint.backend.results import Turn
from forkpoint.backend.settings import Settings
from forkpoint.errors import (
    AlreadyExists,
    Busy,
    CallNotOpen,
    ForkpointError,
    KeyReused,
    NotFound,
    Stale,
    TurnCancelled,
    TurnOpen,
)
from forkpoint.server.services import Services
from forkpoint.server.wires.chat.asked import Asked
from forkpoint.server.wires.chat.dressing import Dressed, Wish
from forkpoint.server.wires.chat.finding import Finding
from forkpoint.server.wires.chat.identity import Identity
from forkpoint.server.wires.chat.lists import read_list
from forkpoint.server.wires.chat.placing import Placing
from forkpoint.store.records import ConversationRecord

_log = logging.getLogger("forkpoint.server")

TRIES = 8
"""How often a request looks again when others move its conversation while it looks."""


class Conversing:
    """A request for a conversation, on its way to a turn."""

    def __init__(
        self,
        services: Services,
        tenant: str,
        asked: Asked,
        identity: Identity,
        agent: str,
        *,
        request: str,
        key: str | None,
    ) -> None:
        self._chat = services.chat
        self._turns = services.turns
        self._backend = services.tenants.backend(tenant)
        self._settings = services.settings
        self._tenant = tenant
        self._asked = asked
        self._identity = identity
        self._agent = agent
        self._request = request
        self._key = key
        self._list = read_list(asked.messages)
        self._is_full = identity.history == "full"
        self._finding = Finding(self._chat, self._backend, tenant, identity, asked)
        self._placing = Placing(
            self._chat, self._backend, self._finding.place, self._list, is_full=self._is_full, has_key=key is not None
        )
        self._is_there = False  # whether the conversation was found
        self.status: Literal["created", "continued"] = "continued"
        self.answers: Agent | None = None  # who does, once that is known

    async def run(self, tell: Callback) -> Turn:
        """The turn. Raises what kept it from beginning, or what ended it; then the conversation is as it was."""
        begun = supersede = False

        def told(update: Update) -> None:
            nonlocal begun
            if isinstance(update, TurnStarted):
                begun = True
                self._chat.refused.forget(self._finding.place)
                self._finding.hot(update.conversation)  # also if it fails, and leaves a draft
            tell(update)

        with self._chat.hot.busy(self._finding.place):
            for left in reversed(range(TRIES)):
                try:
                    return await self._try(told, fresh=left < TRIES - 1, supersede=supersede)
                except ForkpointError as error:
                    if begun:
                        raise
                    if not left or not self._is_worth_another_look(error):
                        raise self._by_its_name(error) from None
                    supersede = supersede or isinstance(error, TurnOpen)
        raise AssertionError("the last try returns or raises")

    def _is_worth_another_look(self, error: ForkpointError) -> bool:
        """Whether what was known of the conversation is out of date."""
        match error:
            case Stale() | AlreadyExists(what="conversation"):
                return True  # somebody was faster
            case KeyReused():
                return not self._is_there  # perhaps by this very request, which has made it meanwhile
            case NotFound(what="conversation"):
                return self._chat.hot.get(self._finding.place) is not None
            case TurnOpen(outcome="interrupted"):
                return True  # its process is gone, and nobody can go on with it through this API
            case _:
                return False

    def _by_its_name(self, error: ForkpointError) -> ForkpointError:
        """An error about the conversation, as the client knows it."""
        name = self._identity.name
        match error:
            case Stale():
                return Busy(name, "after turn")  # it moves faster than it can be looked at
            case Busy(turn=turn):
                return Busy(name, turn)
            case TurnOpen(turn=turn, outcome=outcome):
                return TurnOpen(name, turn, outcome)
            case CallNotOpen(call=call, why=why):
                return CallNotOpen(call, name, why)
            case _:
                return error

    async def _try(self, tell: Callback, *, fresh: bool, supersede: bool) -> Turn:
        is_retry, wants_origin = self._identity.is_retry, self._identity.source is not None
        record = await self._finding.find(fresh=fresh or bool(self._list.results) or is_retry or wants_origin)
        if record is not None and record.draft and not is_retry:
            record = await self._finding.find(fresh=True)
        # From here on it is this record that all is decided by: if it has moved since, the turn does not begin.
        if record is not None and is_retry and (turn := await self._joined(record, tell)) is not None:
            return turn
        if wants_origin or (record is not None and record.draft):
            record = await self._finding.origin(record)
        self._is_known(record)
        dressed, settings = self._dressed(record)
        self.answers = dressed.agent
        begun = await self._placing.begin(record)
        draft = self._finding.draft(settings) if record is None else None
        known: Draft | ConversationRecord | None = draft or record
        assert known is not None
        turn = await self._backend.run(
            known.id,
            dressed.agent,
            begun.given,
            draft=draft,
            supersede=supersede,
            key=self._key,
            if_revision=None if record is None else record.revision,
            how=How(
                settings=settings,
                onto=begun.onto,
                options=self._asked.options,
                attended=False,
                final=self._asked.stream,
                request=self._request,
            ),
            tell=tell,
        )
        try:
            entry, has_form = self._finding.hot(turn.conversation), dressed.agent.output is not None
            await self._placing.remember(turn, begun, record, entry, has_form=has_form)
        except Exception:  # it is committed, and whatever this is does not change that
            _log.exception("what a turn leaves in memory could not be kept")
        return turn

    async def _joined(self, record: ConversationRecord, tell: Callback) -> Turn | None:
        """The turn that this very request began when it was sent before. None if it has to be run anew.

        A client that gave up waiting has gone, and its turn is being stopped: that one is not joined, but waited for.
        """
        if self._chat.refused.get(self._finding.place) == self._request:
            return None  # it was not even begun
        await self._backend.end_what_could_not_be_ended(record.id)  # then it is known whether it was committed
        same = await self._backend.turn_of_request(record, self._request)
        if same is None:
            return None
        first = record.lineage.at if record.lineage.kind == "fork" else None
        self.status = "created" if same.base == first else "continued"
        here = self._turns.feed(self._tenant, record.id)
        if here is not None and here.is_left:
            await here.ended.wait()
            return None
        try:
            return await self._backend.join(same, tell)
        except TurnCancelled:
            if here is not None:
                raise  # it was not for want of a client
            return None

    def _is_known(self, record: ConversationRecord | None) -> None:
        self._is_there = record is not None
        is_new = record is None or record.draft or record.head.position is None  # sub-agents keep what else is a draft
        self.status = "created" if is_new else "continued"

    def _dressed(self, record: ConversationRecord | None) -> tuple[Dressed, Settings]:
        """The agent as it answers here, and the settings that say so."""
        now = None if record is None or record.head.position is None else Settings.from_json(record.settings)
        follows = self._is_full or now is None or (self._settings.system == "follow" and bool(self._list.system))
        wish = Wish(
            agent=self._agent,
            system=self._list.system if follows or now is None else now.system or "",
            tools=self._asked.tools,
            output=self._asked.output,
            effort=self._asked.reasoning_effort,
        )
        dressed = self._chat.wardrobe.dress(wish)
        if record is not None:
            workspace = Settings.from_json(record.settings).workspace if now is None else now.workspace
        else:
            workspace = self._chat.wardrobe.workspace(wish)
        settings = dressed.settings(workspace)
        if record is not None:
            stored = Settings.from_json(record.settings)
            settings = replace(settings, made=stored.made, placed=stored.placed)
        return dressed, settings
