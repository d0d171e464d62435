"""Side questions, and a look at what is sent to models. None of it becomes history.
Tests: tests/conversation/test_ask.py, test_requests.py, test_why.py."""

from collections.abc import Sequence

from forkpoint.agent.agent import Agent
from forkpoint.backend.allowance import NOTHING, is_stand_in
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.options import Draft
from forkpoint.backend.results import SideAnswer
from forkpoint.backend.settings import Settings
from forkpoint.engine.budgets.admission import admission_beside
from forkpoint.engine.questions.cache_reports import CacheReports
from forkpoint.engine.questions.requests import Requests
from forkpoint.engine.resources import Resources
from forkpoint.engine.turns.journal import staged
from forkpoint.engine.turns.skills import called_for
from forkpoint.events import ModelCalled, NewEvent, StagedEvent, Usage, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm.answers import Failed
from forkpoint.llm.options import Options
from forkpoint.llm.prices import load_prices
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.inspection import Inspection, inspect_request
from forkpoint.llm.prompt.misses import CacheReport
from forkpoint.llm.prompt.rendering import render
from forkpoint.store.values import StoredConversation


class Questions:
    """Asks a conversation's model without a turn, and shows what turns send."""

    def __init__(self, resources: Resources) -> None:
        self._store = resources.store
        self._models = resources.models
        self._prompts = resources.prompts
        self._planner = resources.planner
        self._charges = resources.charges
        self._reports = CacheReports(resources)

    async def ask(
        self, id: str, agent: Agent, messages: Sequence[UserMessage], *, allow: frozenset[str] = NOTHING, tell: Callback
    ) -> SideAnswer:
        self._charges.check()
        record = await self._store.read(id)
        agent = self._planner.agent_for(record.settings, agent, allow)
        agent.llm.key()
        self._planner.check_trust(Settings.from_json(record.settings), record.family)
        base = await self._prompts.at(id, record.head, agent.manifest)
        opening = await self._opening(record, messages)
        options = Options(tool_choice="none") if agent.manifest.tools else Options()
        spent: list[ModelCalled] = []
        admit = await admission_beside(self._store, id, new_id())
        try:
            outcome = await self._models.call(
                agent.llm,
                base.then(opening),
                self._planner.context(record, agent),
                options,
                heard=tell,
                record=spent.append,
                admit=admit,
            )
        finally:
            used = sum((called.usage for called in spent), Usage())
            self._charges.add(id, used, None if admit is None else admit.id)
            await self._charges.settle()
        if isinstance(outcome, Failed):
            raise outcome.error
        return SideAnswer(outcome.answer.text, outcome.usage, outcome.answer.finish)

    async def request(
        self,
        id: str,
        agent: Agent,
        messages: Sequence[UserMessage],
        *,
        draft: Draft | None = None,
        allow: frozenset[str] = NOTHING,
    ) -> Inspection:
        if draft is not None:  # there is nothing yet, and looking makes nothing
            context = CallContext(own_identity(id), self._store.tenant)
            prompt = render(agent.manifest, staged(map(NewEvent, messages)))
            await load_prices(agent.llm)
            return inspect_request(self._models.request(agent.llm, prompt, context), None)
        record = await self._store.read(id)
        requests = self._requests(record, agent, allow)
        agent = self._planner.agent_for(record.settings, agent, allow)
        base = await self._prompts.at(id, record.head, agent.manifest)
        return await requests.next(base.then(await self._opening(record, messages, agent)))

    async def sent(self, id: str, agent: Agent, turn: str | None, *, allow: frozenset[str] = NOTHING) -> Inspection:
        return await self._requests(await self._store.read(id), agent, allow).sent(turn)

    async def why(self, id: str, turn: str | None) -> CacheReport:
        return await self._reports.of(id, turn)

    def _requests(self, record: StoredConversation, agent: Agent, allow: frozenset[str]) -> Requests:
        agent = self._planner.agent_for(record.settings, agent, allow)
        stored = Settings.from_json(record.settings).agent_json if is_stand_in(agent) else None
        return Requests(self._store, self._models, record, agent, self._planner.context(record, agent), stored)

    async def _opening(
        self, record: StoredConversation, messages: Sequence[UserMessage], agent: Agent | None = None
    ) -> list[StagedEvent]:
        """How a turn with these messages would begin; with the skills that they call for, if ``agent`` would answer."""
        results, said = await self._planner.answered(record.id, record.head, messages, record.name)
        called: list[NewEvent] = []
        if agent is not None:
            folder = Settings.from_json(record.settings).folder
            skills = await self._planner.skills.of(agent, folder, record.family)
            told = await self._planner.skills_told(record.id, record.head, await self._store.state(record.id))
            called = await called_for(skills, messages, told, folder)
        return staged((*results, *called, *said))
