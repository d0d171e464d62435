"""One response: a request on its way to a turn.

Where the turn stands:

- `previous_response_id`: after that turn. It goes on in place only in a conversation that this API made by itself, that
  nobody has named or used otherwise since, and whose head is that turn. Anything else is forked there, so nobody waits.
- `conversation`, or a header that names one: a turn of that conversation. It may be busy.
- neither: a new conversation without a name.

With `store: false` nothing is kept but the cost. Tests: the files of tests/server/responses that speak HTTP.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.messages import Given, MessageBody
from forkpoint.backend.options import Draft, How, NewTurn
from forkpoint.backend.results import Turn
from forkpoint.backend.settings import Settings
from forkpoint.engine import NamedDraft, paired
from forkpoint.errors import (
    AlreadyExists,
    BadRequest,
    Busy,
    ForkpointError,
    Invalid,
    KeyReused,
    NotFound,
    Stale,
    TurnOpen,
    Unpaired,
)
from forkpoint.events import (
    AssistantMessage,
    Condensation,
    Imported,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.ids import id_beside, new_id
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.server.http.call import JSON, ApiCall
from forkpoint.server.live.feed import Feed
from forkpoint.server.wires.answerers import Wish
from forkpoint.server.wires.body import digest_of
from forkpoint.server.wires.errors import should_retry
from forkpoint.server.wires.identity import RETRIES, is_retry, read_identity
from forkpoint.server.wires.responses.items.ids import conversation_named, turn_of_response
from forkpoint.server.wires.responses.items.input import InputItem, ItemReference, attributed
from forkpoint.server.wires.responses.items.references import PathBefore, referenced
from forkpoint.server.wires.responses.request import read_request
from forkpoint.server.wires.responses.service import MADE_BY, UNNAMED, is_its_end
from forkpoint.server.wires.responses.stream import ResponseStream
from forkpoint.server.wires.retries import joined
from forkpoint.store import StoredConversation, StoredTurn
from forkpoint.updates import TurnStarted

SOURCE = "responses"
"""How history is marked that a client brought along."""

TRIES = 8
"""How often a request looks again if others move its conversation while it looks."""


class ResponseTurn:
    """A request for a response, and the turn that answers it."""

    def __init__(self, call: ApiCall, body: bytes) -> None:
        """Reads the request. Raises what is wrong with it, before anything is looked up."""
        headers = call.request.headers
        if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise BadRequest(f"its Content-Type must be {JSON}")  # any web page can send other types unasked
        self.call = call
        self._services = call.services
        self._settings = call.services.settings
        self._backend = call.backend
        self._placement = call.backend.placement
        self._key = call.key
        self.request = read_request(body, strict=self._settings.strict)
        self.echo = self.request.echo
        self._agent_name, _ = call.services.chat.models.find(self.request.model)
        self._named = read_identity(headers, self._settings.conversation_headers, None)
        if self._named is not None and (self.echo.previous_response_id or self.echo.conversation):
            raise BadRequest(f"{self._named.header} cannot stand beside previous_response_id or conversation")
        if self._named is not None and not self.echo.store:
            raise Invalid("store", f"{self._named.header} names a conversation, whose turns are always stored")
        self._digest = digest_of(body + self._said_by_headers).hex()
        has_form = self.request.output or self._services.agents.named(self._agent_name).output
        is_told = self.request.stream or self.echo.background
        holds = has_form is not None or not self.request.stream  # else no model is asked again once it has spoken
        self.stream = ResponseStream(self.echo, holds=holds, tells=is_told)
        self._is_retry = is_retry(headers)
        self._client_retries = RETRIES in headers  # OpenAI's own packages, which retry by themselves, count there
        self.has_begun = False  # whether a stream was begun: then no package retries it
        self.status: Literal["created", "continued", "branched"] = "created"
        self.name: str | None = None  # of the conversation, once that is known

    async def start(self) -> tuple[Feed, bool]:
        """Begins the turn. Gives its feed, and whether another request began it. Raises what is wrong."""
        act = self._run if self.echo.store else self._unkept
        try:
            feed, is_joined = await self._services.turns.start(self.call.tenant, act)
        except ForkpointError as error:
            # The client will send this again, and an equal request that was answered is another one.
            if self.echo.store and not self._is_retry and should_retry(error):
                self._services.responses.refused.put(self._place, True)
            raise
        stops = self._settings.on_disconnect == "cancel" and not self.echo.background
        if stops or not self.echo.store:
            feed.stop = partial(self._services.turns.abandon, self.call.tenant, feed, self._backend.turns.cancel)
        return feed, is_joined

    async def check_place(self) -> None:
        """Raises `NotFound` if what the request goes on from is not there."""
        if self.echo.previous_response_id is not None:
            await self._previous()
        if self.echo.conversation is not None:
            await self._conversation(conversation_named(self.echo.conversation))

    @property
    def _place(self) -> tuple[str, str, str]:
        named = None if self._named is None else self._named.name
        where = self.echo.previous_response_id or self.echo.conversation or named or ""
        return self.call.tenant, where, self._digest

    @property
    def _said_by_headers(self) -> bytes:
        """What the headers add to the body: the same body in another conversation is another request."""
        if self._named is None:
            return b""
        return b"\0" + (b"" if self._named.is_made_up else self._named.name.encode())

    @property
    def agent(self) -> Agent | None:
        """Who answers, once that is known."""
        return self.stream.agent

    # Without anything that is kept.

    async def _unkept(self, tell: Callback) -> Turn:
        """Answers the input, after the path of the previous response if there is one."""
        agent, _ = self._dressed(None)
        before: list[MessageBody] = []
        path: PathBefore | None = None
        open_calls: Sequence[str] = ()
        if self.echo.previous_response_id is not None:
            turn, record = await self._previous()
            before = await self._path_to(record, turn)
            path, open_calls = PathBefore.to(record, turn), turn.open_calls.client
        new = self._given(await self._bodies(agent, path), open_calls)
        given = paired([*before, *(body for body in new if not isinstance(body, Imported))])
        wish = self._wish()
        folder = self._services.chat.wardrobe.workspace(wish)
        shared = self.echo.prompt_cache_key or agent.manifest.hash
        identity = own_identity(f"{self.call.tenant}\0beside conversations\0{shared}")
        how = How(options=self.request.options, final=self.request.stream, retried=self._is_retried)
        return await self._backend.turns.once(
            agent,
            given,
            identity=identity,
            how=how,
            workspace=None if folder is None else Path(folder),
            tell=self._heard_by(tell),
        )

    async def _path_to(self, record: StoredConversation, turn: StoredTurn) -> list[MessageBody]:
        """What prompts show of the path up to the end of a turn."""
        assert turn.end is not None
        events = await self._backend.events(record.id)
        events = [event for event in events if event.id.ordinal <= turn.end.ordinal]
        bodies: list[tuple[int, MessageBody]] = []
        for event in events:
            match event.body:
                case Condensation(summary=summary, kept_from=kept_from):
                    kept = [one for one in bodies if one[0] >= kept_from or isinstance(one[1], SystemMessage)]
                    bodies = [(kept_from, UserMessage((Text(summary),))), *kept]
                case UserMessage() | SystemMessage() | AssistantMessage() | ToolCall() | ToolResult() | Reasoning():
                    bodies.append((event.id.ordinal, event.body))
                case _:
                    pass
        return [body for _, body in bodies]

    # In a conversation.

    async def _run(self, tell: Callback) -> Turn:
        """The turn. Raises what kept it from beginning, or what ended it; then the conversation is as it was."""
        begun = False
        heard = self._heard_by(tell)

        def told(update: Update) -> None:
            nonlocal begun
            if isinstance(update, TurnStarted):
                begun = True
                self._services.responses.refused.pop(self._place)
            heard(update)

        for left in reversed(range(TRIES)):
            try:
                return await self._try(told)
            except (Stale, AlreadyExists):
                if begun or not left:
                    raise
            except (KeyReused, Unpaired):
                if begun or left < TRIES - 1 or self._key is None:
                    raise  # else this very request may have used the key, and answered the calls, meanwhile
            except Busy as error:
                raise error if begun else Busy.conversation_locked(self.name or error.conversation) from None
        raise AssertionError("the last try returns or raises")

    async def _try(self, tell: Callback) -> Turn:
        there = None if self._key is None else await self._placement.made_with(self._key, self._digest)
        if there is not None:
            return await self._again_with_key(there, tell)
        if self.echo.previous_response_id is not None:
            return await self._follow(tell)
        if self.echo.conversation is not None:
            return await self._in_conversation(tell, conversation_named(self.echo.conversation))
        if self._named is not None:
            return await self._in_named(tell)
        settings = self._new_settings()
        id = new_id() if self._key is None else id_beside(_FIRST, f"{self.call.tenant} {self._key}")
        draft = Draft(id=id, name=None, settings=settings, tags={MADE_BY: UNNAMED})
        return await self._go(tell, None, draft=draft)

    async def _again_with_key(self, there: StoredConversation, tell: Callback) -> Turn:
        """The turn that this request began with its key, in whatever conversation that was."""
        assert self._key is not None
        previous, answered = self.echo.previous_response_id, [item.body for item in self.request.items]
        is_fork = previous is not None and there.id == id_beside(turn_of_response(previous), self._key)
        self.status = "branched" if is_fork else "continued"
        if self.echo.conversation is not None or self._named is not None:
            self._is_turn_of(there.id)
        calls = [body.call_id for body in answered if isinstance(body, ToolResult)]  # that turn has answered them
        return await self._go(tell, there, open_calls=calls)

    async def _follow(self, tell: Callback) -> Turn:
        """Goes on after the previous response: in place, or on a fork. It never waits for another turn."""
        turn, record = await self._previous()
        if self._asks_again:
            done = await self._again_after(turn, record, tell)
            if done is not None:
                return done
            turn, record = await self._previous()
        if is_its_end(record, turn) and record.status == "idle":
            self.status = "continued"
            try:
                return await self._go(tell, record, if_revision=record.revision)
            except (Busy, Stale, TurnOpen):
                if self.stream.is_begun:
                    raise  # it is the turn itself that ended so
        self.status = "branched"
        _, settings = self._dressed(record)
        draft = self._placement.fork_after(record, turn, settings, {MADE_BY: UNNAMED})
        if self._key is not None:
            draft = replace(draft, id=id_beside(turn.id, self._key))
        path = PathBefore.to(record, turn)
        return await self._go(tell, record, draft=draft, open_calls=turn.open_calls.client, path=path)

    @property
    def _asks_again(self) -> bool:
        """Whether this very request may have begun a turn when it was sent before."""
        return self._is_retry and self._services.responses.refused.get(self._place) is None

    async def _again_after(self, turn: StoredTurn, record: StoredConversation, tell: Callback) -> Turn | None:
        """The turn that this request began after another turn, in place or on a fork. None if it has to be run."""
        in_place = await self._again_in(record, tell)
        if in_place is not None:
            return in_place
        found = await self._placement.repeated_after(record, turn, self._digest)
        if found is None:
            return None
        self.status = "branched"
        branch, same = found
        return await self._again(branch, same, tell, turn.open_calls.client)

    async def _again_in(self, record: StoredConversation, tell: Callback) -> Turn | None:
        """The turn that this request began in a conversation when it was sent before. None if it has to be run."""
        if not self._asks_again:
            return None
        await self._backend.turns.unended.end(record.id)  # then it is known whether it was committed
        same = await self._placement.repeated(record, self._digest)
        if same is None:
            return None
        self.status = "continued"
        return await self._again(record, same, tell)

    async def _again(
        self, record: StoredConversation, same: StoredTurn, tell: Callback, open_calls: Sequence[str] | None = None
    ) -> Turn | None:
        self.name = record.name
        if same.outcome == "interrupted":
            return await self._go(tell, record, open_calls=open_calls, again=same)
        return await joined(self.call, same, tell)

    async def _previous(self) -> tuple[StoredTurn, StoredConversation]:
        """The turn of the previous response, and a conversation that has it. Raises `NotFound`."""
        id = self.echo.previous_response_id or ""
        try:
            turn, record = await self._placement.ended_turn(turn_of_response(id))
        except NotFound:
            raise NotFound.previous_response_not_found(id[:200]) from None
        if self._services.responses.is_hidden(record, turn.id):
            raise NotFound.previous_response_not_found(id[:200])
        return turn, record

    async def _in_conversation(self, tell: Callback, named: str) -> Turn:
        """Runs a turn of a conversation that exists."""
        record = await self._conversation(named)
        self.status = "continued"
        return await self._in_place(tell, record)

    async def _conversation(self, named: str) -> StoredConversation:
        """The conversation that the request names. Raises `NotFound`."""
        record = await self._placement.by_name(named)
        if record is None or await self._placement.is_abandoned(record.id):
            raise NotFound("conversation", (self.echo.conversation or named)[:200])
        return record

    async def _in_named(self, tell: Callback) -> Turn:
        """Runs a turn of the conversation that a header names, which may be new, or a fork that is to be made."""
        assert self._named is not None
        named = self._named
        record = await self._placement.by_name(named.name)
        wanted = NamedDraft(named.name, None, {}, named.fork_of)
        if named.fork_of is not None or (record is not None and record.draft):
            record = await self._placement.claim(wanted, record)
        is_new = record is None or record.draft or record.head.position is None
        self.status = "created" if is_new else "continued"
        if record is not None:
            return await self._in_place(tell, record)
        draft = wanted.new(self._new_settings())
        self._is_turn_of(draft.id)
        return await self._go(tell, None, draft=draft)

    async def _in_place(self, tell: Callback, record: StoredConversation) -> Turn:
        self._is_turn_of(record.id)
        self.name = record.name
        done = await self._again_in(record, tell)
        if done is not None:
            return done
        supersede = record.status == "interrupted"  # its process is gone, and nobody can go on with it here
        return await self._go(tell, record, supersede=supersede, if_revision=record.revision)

    def _is_turn_of(self, conversation: str) -> None:
        self.echo = self.stream.echo = replace(self.echo, conversation=conversation)

    async def _go(
        self,
        tell: Callback,
        record: StoredConversation | None,
        *,
        draft: Draft | None = None,
        open_calls: Sequence[str] | None = None,
        path: PathBefore | None = None,
        supersede: bool = False,
        if_revision: int | None = None,
        again: StoredTurn | None = None,
    ) -> Turn:
        """Runs the turn. ``open_calls`` and ``path`` are those where it stands, if that is not the conversation's head.

        ``again`` is the interrupted turn of this very request, which is resumed.
        """
        agent, settings = self._dressed(record)
        if draft is not None:
            settings = draft.settings
        if open_calls is None:
            open_calls = () if record is None else record.head.open_calls.client
        known = draft or record
        assert known is not None
        self.name = known.name or known.id
        if path is None and record is not None:
            path = PathBefore(record, record.head.ordinal)
        given = self._given(await self._bodies(agent, path), open_calls)
        new = NewTurn(
            given=given,
            draft=draft,
            supersede=supersede,
            key=self._key,
            if_revision=if_revision,
            accepted=self.echo.background,
            how=How(
                settings=settings,
                options=self.request.options,
                attended=False,
                final=self.request.stream,
                retried=self._is_retried,
                request=self._digest,
                echo=self.echo.to_json(),
            ),
        )
        if record is not None and self.echo.conversation is not None:  # somebody uses it as a conversation
            await self._services.responses.adopt(self._backend, record)
        if again is not None:
            return await self._backend.turns.repeat(again, agent, new, tell)
        if self._key is not None:
            await self._services.turns.until_left(self.call.tenant, known.id)
        return await self._backend.turns.run(known.id, agent, new, tell)

    # Who answers, and what is given.

    def _wish(self) -> Wish:
        request, asked = self.request, self.echo.reasoning
        effort = None if asked is None else asked.effort
        return Wish(self._agent_name, self.echo.instructions or "", request.tools, request.output, effort)

    def _dressed(self, record: StoredConversation | None) -> tuple[Agent, Settings]:
        """The agent as it answers here, and the settings that say so: those of this request, each time."""
        agent, settings = self._services.chat.wardrobe.dress(self._wish())
        self.stream.agent = agent
        return agent, settings if record is None else settings.at(Settings.from_json(record.settings))

    def _new_settings(self) -> Settings:
        """The settings of a conversation that the request makes."""
        _, settings = self._dressed(None)
        return replace(settings, workspace=self._services.chat.wardrobe.workspace(self._wish()))

    async def _bodies(self, agent: Agent, path: PathBefore | None) -> list[MessageBody]:
        """What the input says, for this agent."""
        bodies: list[MessageBody] = []
        for item in self.request.items:
            for body in await self._said_by(item, path):
                body = attributed(body, agent)
                if isinstance(body, Reasoning) and body.provider is None and body.text is None:
                    continue  # nothing of it could be shown to this model
                bodies.append(body)
        return bodies

    async def _said_by(self, item: InputItem, path: PathBefore | None) -> Sequence[MessageBody]:
        """What an item says. A thought that this server has comes back as the model wrote it."""
        if isinstance(item.body, ItemReference):
            found = await referenced(self.call, item.body.id, path)
            if found is None:
                raise Invalid(f"{item.body.place}.id", "there is no such item here")
            return found
        if isinstance(item.body, Reasoning) and item.id is not None:
            return await referenced(self.call, item.id) or (item.body,)
        return (item.body,)

    def _given(self, bodies: Sequence[MessageBody], open_calls: Sequence[str]) -> tuple[Given, ...]:
        """What the turn is given: results of open calls, history from elsewhere, and what is new.

        Raises `Unpaired` for a result without a call, and `Invalid` if there is nothing.
        """
        results: list[ToolResult] = []
        rest: list[MessageBody] = []
        called: set[str] = set()
        for body in bodies:
            if isinstance(body, ToolCall) and body.call_id in open_calls:
                continue  # the path has it
            if isinstance(body, ToolResult) and body.call_id not in called:
                if body.call_id not in open_calls:
                    waiting = ", ".join(open_calls[:10]) or "none"
                    why = f"these are open: {waiting}"
                    raise Unpaired.call_not_open(body.call_id[:200], self.name or "(new)", why)
                results.append(body)
                continue
            if isinstance(body, ToolCall):
                called.add(body.call_id)
            rest.append(body)
        if len({one.call_id for one in results}) < len(results):
            raise Invalid("input", "a call has two results")
        last = max((place for place, body in enumerate(rest) if not _is_new(body)), default=-1)
        history = paired(rest[: last + 1])
        new = rest[last + 1 :]
        _check_new((*results, *history, *new))
        marked = [Imported(SOURCE, len(history))] if history else []
        return (*results, *marked, *history, *(new if history or results else _asked(new)))

    def _is_retried(self) -> bool:
        """Whether the client sends this request again by itself, if the turn fails now. Each try is then one call."""
        return self._client_retries and not self.has_begun and not self.stream.ran_tools

    def _heard_by(self, tell: Callback) -> Callback:
        def told(update: Update) -> None:
            self.stream.hear(update)
            tell(update)

        return told


_FIRST = "00000000-0000-7000-8000-000000000000"  # ids of conversations that are made with a key stand beside this


def _is_new(body: MessageBody) -> bool:
    return isinstance(body, UserMessage | SystemMessage)


def _asked(given: Sequence[Given]) -> tuple[Given, ...]:
    """The same, with a question in it: if only system messages came, the last one is the question."""
    if given and all(isinstance(body, SystemMessage) for body in given):
        last = given[-1]
        assert isinstance(last, SystemMessage)
        return (*given[:-1], UserMessage(last.parts))
    return tuple(given)


def _check_new(given: Sequence[Given]) -> None:
    if not given:
        raise Invalid("input", "there is nothing to answer; send a text or items")
