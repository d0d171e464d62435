"""Planning a turn: who answers, with which identity, and what is written down before anything runs.
Tests: tests/conversation/test_turns.py."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.approval import Approval
from forkpoint.agent.arguments import BadArguments, object_of
from forkpoint.agent.mcp import Offered, offered_now
from forkpoint.agent.run import Run
from forkpoint.agent.skills.skill import Skill
from forkpoint.agent.stored.document import bind
from forkpoint.backend.allowance import (
    NOTHING,
    allows,
    going_on,
    is_stand_in,
    missing_workspace,
    standing_in,
    stands_for,
)
from forkpoint.backend.messages import Given, goes_on, said_in, split
from forkpoint.backend.options import Decision, ForkOptions, How
from forkpoint.backend.results import calls_of
from forkpoint.backend.settings import Settings
from forkpoint.engine.conversation_cache import ConversationCache
from forkpoint.engine.standing_approvals import StandingApprovals
from forkpoint.engine.team.rights import beneath
from forkpoint.engine.trust import Trusting
from forkpoint.engine.turns.journal import staged
from forkpoint.engine.turns.path import calls_among, newest, read_last_exchanges
from forkpoint.engine.turns.prompts import Prompts
from forkpoint.engine.turns.skills import Skills, called_for
from forkpoint.engine.turns.transaction import Plan
from forkpoint.engine.views import identity_of
from forkpoint.errors import BadArgument, BadTool, CallChanged, CannotResume, NoSuchTurn, Unpaired
from forkpoint.events import (
    ApprovalDenied,
    ApprovalGiven,
    JsonText,
    ManifestChanged,
    NewEvent,
    SettingsChanged,
    SkillActivated,
    StagedEvent,
    Text,
    ToolCall,
    ToolResult,
)
from forkpoint.history.state import State
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import CacheIdentity, CallContext, fork_identity, own_identity, under_manifest
from forkpoint.llm.prompt.manifest import Manifest, manifest_note
from forkpoint.llm.prompt.rendering import render
from forkpoint.lru import Lru
from forkpoint.store.protocol import Store
from forkpoint.store.values import Head, NewFork, OpenTurn, StoredConversation
from forkpoint.workspace.pins.pins import PinnedCommand

_log = logging.getLogger("forkpoint")

_AGENTS = 256  # agents that are remembered for the settings that name them


class Planner:
    """Plans the turns of a store's conversations."""

    def __init__(
        self,
        store: Store,
        prompts: Prompts,
        records: ConversationCache,
        trusting: Trusting,
        standing: StandingApprovals,
        *,
        patience: float | None = None,
    ) -> None:
        self.skills = Skills(trusting)
        self._patience = patience  # seconds that a turn may take, whatever its agent says
        self._store = store
        self._prompts = prompts
        self._records = records
        self._trusting = trusting
        self._standing = standing
        self._agents: Lru[tuple[JsonText, int, frozenset[str]], tuple[Agent, Agent]] = Lru(_AGENTS)

    def agent_for(self, settings: JsonText, agent: Agent, allow: frozenset[str] = NOTHING) -> Agent:
        """The agent that a conversation's settings name, which may have changed since this one was made.

        Or a substitute without the missing parts that ``allow`` permits.
        """
        key = (settings, id(agent), allow)  # held in the value, so that nobody else can have its id
        if (known := self._agents.get(key)) is None:
            document = Settings.from_json(settings).agent_json
            if document is None or stands_for(agent, document):
                found = agent
            else:
                found = bind(document, agent, same=True, without=partial(allows, allow))
            known = (agent, found)
            self._agents.put(key, known)
        return known[1]

    def check(self, settings: Settings, agent: Agent | None, allow: frozenset[str]) -> None:
        """Raises `CannotResume` with everything that a turn with these settings would miss.

        ``agent`` is who would answer, if that is to be looked at.
        """
        items = missing_workspace(settings)
        try:
            if agent is not None:
                self.agent_for(settings.to_json(), agent, allow)
        except CannotResume as refused:
            items += refused.items
        if refused_items := [item for item in items if not allows(allow, item)]:
            raise CannotResume.of(refused_items)

    def check_arguments(
        self, settings: Settings, agent: Agent, steps: Sequence[StagedEvent], decision: Decision | None, how: How
    ) -> None:
        """Raises `BadArgument` if a call is approved with arguments that its tool does not take."""
        if decision is None or not any(call.arguments is not None for call in decision.calls):
            return
        agent = self.agent_for(settings.to_json(), agent, how.allow)
        tools = {call.id: call.tool for call in calls_of(steps) if call.status == "waiting"}
        for call in decision.calls:
            if call.arguments is None:
                continue
            what = f"the arguments for call {call.id!r}"
            if not decision.approved:
                raise BadArgument("deny()", what, "a call that is denied does not run")
            if (tool := agent.tool(tools[call.id])) is None:
                raise BadArgument("approve()", what, f"the agent has no tool {tools[call.id]!r}")
            if not call.arguments.strip():
                raise BadArgument("approve()", what, "they are not JSON")
            try:
                tool.arguments.read(call.arguments)
                json.loads(call.arguments, object_pairs_hook=object_of)  # no name stands there twice
            except (BadArguments, ValueError, RecursionError) as error:
                raise BadArgument("approve()", what, str(error)) from None

    def check_trust(self, settings: Settings, family: str | None, wish: bool | None = None) -> None:
        """Raises `TrustChanged` if the project that a turn works in is not what was approved. It costs a look or two at
        the disk unless something has changed."""
        self._trusting.check(settings, family, wish)

    async def plan(
        self, turn: OpenTurn, agent: Agent, given: Sequence[Given], already: Sequence[StagedEvent], how: How
    ) -> Plan:
        """What a turn that this process holds needs to go on, with the steps that it has already."""
        record = await self._records.at(turn)
        path = turn.branch or turn.conversation  # on whose path it stands
        carried = brought(already) if how.settings is None else how.settings
        agent, settings, stands, pinned = await self._answerer(record, agent, carried, how, begins=not already)
        base = await self._prompts.at(path, turn.base, agent.manifest, erasures=turn.erasures)
        change = await self.manifest_change(record, turn.state, agent, lost=base.losses, path=path, at=turn.base)
        is_new = not already or settings is not carried
        is_told = turn.base.position is not None or bool(agent.mcp)  # a first turn too is resumed with its lists
        is_told = is_told or stands.guarded_by != Settings.from_json(record.settings).guarded_by  # and with its guards
        if settings is not None and is_told and is_new:
            change = [*await self.settings_change(path, turn.base, record.settings, settings.to_json()), *change]
        context = self.context(record, agent, at=turn.base)
        dropped = context.identity.to_json() if context.identity != identity_of(record) else None
        folder, branch = stands.folder, new_id()
        strict = self._trusting.strict(agent, folder, record.family, stands.guarded_by)
        if stands.sub_agent is not None:
            strict = await beneath(self._store, stands, strict, how.above)
        skills = await self.skills.of(agent, folder, record.family)
        told = await self.skills_told(path, turn.base, turn.state) if skills else ()
        events = change
        if not already:
            results, said = await self.answered(path, turn.base, given, record.name)
            called = await self._called_for(skills, given, told, folder, how)
            events = [*results, *change, *called, *said]
        how = self._bounded(strict, how)
        run = Run(
            agent=strict,
            context=context,
            base=base,
            turn=turn.id,
            conversation=turn.conversation,
            sub_agent=None if stands.sub_agent is None else stands.sub_agent.path,
            messages=said_in(given),
            workspace=folder,
            skills=skills,
            told=told,
            terms=how,
            standing=self._standing.of_turn(turn.conversation, record.family, folder),
            pinned=pinned,
            inherited=await self._inherited(path, turn, strict, skills),
        )
        return Plan(
            run,
            how,
            events,
            cache=dropped,
            settings=None if settings is None else settings.to_json(),
            aside=None if turn.branch is None else NewFork(id=branch, cache=own_identity(branch).to_json()),
            stored=agent,
        )

    async def _inherited(
        self, path: str, turn: OpenTurn, agent: Agent, skills: Sequence[Skill]
    ) -> tuple[StagedEvent, ...]:
        """What a turn without input goes on from, if that matters: what tools did since the last message.

        Copies count as what they repeat: whatever was done about the result of a call was done.
        """
        matters = any(skill.files for skill in skills) or any(hook.moment == "after_tool" for hook in agent.hooks)
        if not goes_on(turn.input) or not matters:
            return ()
        events = await read_last_exchanges(self._store, path, turn.base.position)
        return tuple(StagedEvent(replace(event.envelope, origin=None), event.body) for event in events)

    async def plan_unkept(
        self, id: str, agent: Agent, given: Sequence[Given], context: CallContext, how: How, folder: Path | None
    ) -> Run:
        """A run without a conversation: all that it is given is its prompt, and nobody can be asked."""
        agent, pinned = await self.served(agent, folder)
        skills = await self.skills.of(agent, folder)
        called = await called_for(skills, said_in(given), (), folder)
        return Run(
            agent=agent,
            context=context,
            base=render(agent.manifest, staged((*called, *map(NewEvent, given)))),
            turn=id,
            messages=said_in(given),
            workspace=folder,
            skills=tuple(skill for skill in skills if all(one.body != skill.activated() for one in called)),
            terms=replace(self._bounded(agent, how), attended=False),
            pinned=pinned,
        )

    async def _answerer(
        self, record: StoredConversation, agent: Agent, carried: Settings | None, how: How, *, begins: bool
    ) -> tuple[Agent, Settings | None, Settings, Mapping[str, PinnedCommand]]:
        """Who answers, which other settings the turn brings if it commits (None: no others), which hold for it, and
        what is pinned of the project's MCP servers."""
        settings = carried
        if how.settings is None:
            agent = self.agent_for(record.settings if settings is None else settings.to_json(), agent, how.allow)
            stored = Settings.from_json(record.settings) if settings is None else settings
            if (gone_on := going_on(stored, agent, how.allow)) is not stored:
                settings, agent = self._as_strict_as_there(stored, gone_on, agent, record.family)
        stands = Settings.from_json(record.settings) if settings is None else settings
        if (guarded := self._trusting.guarded(stands, record.family)) is not stands:
            settings = stands = guarded
        served, pinned = await self.served(agent, stands.folder, record.family, begins=begins)
        if served is not agent:
            agent = served
            settings = stands = replace(stands, agent=msgspec.Raw(agent.to_json().encode()))
        if settings is not None and settings.to_json() == record.settings:
            settings = None
        return agent, settings, stands, pinned

    async def _called_for(
        self, skills: Sequence[Skill], given: Sequence[Given], told: Sequence[str], folder: Path | None, how: How
    ) -> list[NewEvent]:
        """The skills that a turn begins with: those of the try that it retries, or those that its input calls for."""
        if how.skills is not None:
            return [NewEvent(skill) for skill in how.skills]
        return await called_for(skills, said_in(given), told, folder)

    def _bounded(self, agent: Agent, how: How) -> How:
        """The same terms, within the time that a turn may take here."""
        limits = agent.limits if how.limits is None else how.limits
        if self._patience is None or (limits.seconds is not None and limits.seconds <= self._patience):
            return how
        return replace(how, limits=replace(limits, seconds=self._patience))

    async def served(
        self, agent: Agent, folder: Path | None, family: str | None = None, *, begins: bool = True
    ) -> tuple[Agent, Mapping[str, PinnedCommand]]:
        """The agent with its MCP servers in a folder, and what they offer to a turn that begins; itself, if that is
        what it has. With it comes what is pinned of the project's servers. Raises `McpFailed`, `NoSecret` and
        `TrustChanged`.

        Within a turn the lists stay as they are, however often it is resumed.
        """
        servers, pinned = self._trusting.served(agent.mcp, folder, family, begins=begins)
        offered = servers
        if servers and begins:
            offered = await offered_now(servers, workspace=folder, secrets=agent.secrets, pinned=pinned)
        return agent if offered == agent.mcp else _offering(agent, servers, offered), pinned

    def _as_strict_as_there(
        self, stored: Settings, settings: Settings, agent: Agent, family: str
    ) -> tuple[Settings, Agent]:
        """Who leaves a folder that is gone takes its rule along: what was asked about there still is."""
        left = stored.workspace if settings.workspace is None else None
        trust = "undecided" if left is None else self._trusting.of(left, family)
        if trust == "undecided" and (left is None or stored.guarded_by is None):
            return settings, agent
        asks: Approval = "risky" if trust == "untrusted" else "always"  # a project's policy is gone with its folder
        stricter = agent.replace(approval=(asks, agent.approval), unattended="deny")
        return replace(settings, agent=msgspec.Raw(stricter.to_json().encode())), standing_in(
            stricter, stored.agent_json
        )

    async def settings_change(self, path: str, at: Head, old: JsonText, new: JsonText) -> list[NewEvent]:
        """The events that say that other settings hold from here on, and which did until now."""
        events = [NewEvent(SettingsChanged(new))]
        if at.position is None or await self._store.landmarks(path, ("settings_changed",), at=at.position):
            return events
        return [NewEvent(SettingsChanged(old, "as it was until here")), *events]

    async def manifest_change(
        self,
        record: StoredConversation,
        state: State,
        agent: Agent,
        lost: Sequence[str],
        *,
        path: str | None = None,
        at: Head | None = None,
    ) -> list[NewEvent]:
        """The event that says that prompts begin otherwise from here on; none if they do not."""
        new = agent.manifest
        if state.manifest == new.hash:
            return []
        old: Manifest | None = None
        if state.manifest is not None:
            position = (at or record.head).position
            last = await newest(self._store, path or record.id, "manifest_changed", position)
            if last is not None and isinstance(last.body, ManifestChanged):
                old = Manifest.from_json(last.body.manifest)
        note = manifest_note(old, new, lost)
        identity = identity_of(record)
        shown = under_manifest(identity, record.id, new.hash)
        if shown != identity and shown.dropped:
            note = replace(note, reason=f"{note.reason}. The cache key was {shown.dropped}")
        return [NewEvent(note)]

    async def skills_told(self, path: str, at: Head, state: State) -> tuple[str, ...]:
        """The names of the skills that prompts of a path show: one that was forgotten can be activated again."""
        if state.kept_from <= 1 or not state.skills:
            return state.skills
        kept = await self._store.events(path, at=at.position, after=state.kept_from - 1, kinds=("skill_activated",))
        return tuple(event.body.name for event in kept if isinstance(event.body, SkillActivated))

    async def answered(
        self, path: str, at: Head, given: Sequence[Given], name: str
    ) -> tuple[list[NewEvent], list[NewEvent]]:
        """How a turn begins: with a result for each call that the client was handed, then what else it was given.

        A call that it was not given a result for has not been answered, and that is recorded. Raises `Unpaired`.
        """
        results, others = split(given)
        check_open(name, at.open_calls.client, results)
        if not at.open_calls.client:
            return [], [NewEvent(one) for one in others]
        asked = await calls_among(self._store, path, at.position, at.open_calls.client)
        tools = {event.body.call_id: event.body.tool for event in asked if isinstance(event.body, ToolCall)}
        made = []
        missing = () if said_in(others) else (Text("The client sent no result for this call."),)
        for call in at.open_calls.client:
            result = results.get(call, ToolResult(call, "", missing, "not_answered"))
            made.append(NewEvent(replace(result, tool=tools.get(call, "tool"))))
        return made, [NewEvent(one) for one in others]

    def context(self, record: StoredConversation, agent: Agent, *, at: Head | None = None) -> CallContext:
        """What a call shows a provider of a conversation: made for each, held by nobody."""
        identity = under_manifest(identity_of(record), record.id, agent.manifest.hash)
        shared = min(record.own_from, (at or record.head).ordinal)  # a turn may stand before its own part begins
        return CallContext(identity, self._store.tenant, shared or None)

    async def identity_for(
        self, source: StoredConversation, options: ForkOptions, agent: Agent | None
    ) -> CacheIdentity:
        """The cache identity of a fork. ``agent`` is the source's; without it, its last prompt says how it begins."""
        if options.cache == "own":
            return own_identity(options.id)
        source_manifest = (await self._store.state(source.id)).manifest or ""
        if agent is not None and not is_stand_in(agent):  # one that goes on without something was not shown yet
            with suppress(CannotResume):  # a fork needs no functions: what was recorded last is as good
                source_manifest = self.agent_for(source.settings, agent).manifest.hash
        manifest = options.agent.manifest.hash if options.agent else source_manifest
        return fork_identity(
            identity_of(source),
            source.id,
            options.id,
            options.cache,
            manifest=manifest,
            source_manifest=source_manifest,
        )


def check_open(conversation: str, open: Collection[str], results: Collection[str]) -> None:
    """Raises `Unpaired` for a result of a call that nobody waits for."""
    there = frozenset(open)
    if strangers := [call for call in results if call not in there]:
        waiting = ", ".join(list(open)[:10]) or "none"
        raise Unpaired.call_not_open(strangers[0][:200], conversation, f"these are open: {waiting}")


def _offering(agent: Agent, before: Sequence[Offered], offered: Sequence[Offered]) -> Agent:
    """The agent with what its servers offer. A new list that clashes with a tool of the agent or of another server does
    not replace the old one. Raises `BadTool` if there is none."""
    try:
        return agent.replace(mcp=offered)
    except BadTool:
        lists = [new if old.tools is None else old for old, new in zip(before, offered, strict=True)]
        if lists == list(offered):
            raise
    found = agent if tuple(lists) == agent.mcp else agent.replace(mcp=lists)
    for place, new in enumerate(offered):
        try:
            if new != lists[place]:
                found = agent.replace(mcp=[*lists[:place], new, *lists[place + 1 :]])
                lists[place] = new
        except BadTool as error:
            _log.warning("the new list of the MCP server %s is not used: %s", new.server.name, error)
    return found


def brought(steps: Sequence[StagedEvent]) -> Settings | None:
    """The settings that a turn has begun to bring, so that it brings them although another process ends it."""
    said = [step.body.settings for step in steps if isinstance(step.body, SettingsChanged)]
    return Settings.from_json(said[-1]) if said else None


def decided(
    id: str, turn: str, steps: Sequence[StagedEvent], decision: Decision | None
) -> tuple[list[NewEvent], set[str]]:
    """The events of a decision on calls that wait, and which calls may run now for the first time.

    Raises `NoSuchTurn` if a call does not wait, `CallChanged` if it waits with other content than was seen, and
    `BadArgument` if the decision names a call twice: it might say something else each time.
    """
    if decision is None:
        return [], set()
    waiting = {call.id: call for call in calls_of(steps) if call.status == "waiting"}
    verb = "approve" if decision.approved else "deny"
    if not waiting or not decision.calls:
        raise NoSuchTurn(id, verb, "no call waits for an approval")
    named: set[str] = set()
    for seen in decision.calls:
        if seen.id in named:
            raise BadArgument(f"{verb}()", f"call {seen.id!r}", "it stands there twice")
        named.add(seen.id)
        now = waiting.get(seen.id)
        if now is None:
            raise NoSuchTurn(id, verb, f"call {seen.id!r} does not wait; these do: {', '.join(waiting)}")
        if seen.digest != now.digest and (decision.approved or seen.digest is not None):
            raise CallChanged(seen.id, turn)
    chosen = {seen.id: (waiting[seen.id], seen.arguments) for seen in decision.calls}
    if decision.approved:
        given = [
            ApprovalGiven(call.id, call.tool, decision.by, None if changed == call.arguments else changed)
            for call, changed in chosen.values()
        ]
        return list(map(NewEvent, given)), set(chosen)
    told = (Text(f"This call was not run: {decision.reason}"),) if decision.reason else ()
    events: list[NewEvent] = []
    for call, _ in chosen.values():
        events.append(NewEvent(ApprovalDenied(call.id, call.tool, decision.by, decision.reason)))
        events.append(NewEvent(ToolResult(call.id, call.tool, told, "denied")))
    return events, set()
