"""The table of what comes with a kept branch and what stays, as data: a walk goes through every field that is stored.

It fails if a field has no row: whoever adds one to a conversation, its settings or the agent's document decides what
`keep()` does with it. docs/forks.md shows the same rows. The conversation and the branch differ in every field, so that
what stays cannot be taken for what comes.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import pytest
from msgspec import Struct, defstruct

from forkpoint.agent.stored.document import Document
from forkpoint.agent.stored.guards import GUARDS
from forkpoint.backend.settings import Settings, SubAgentOf
from forkpoint.engine.engine import Engine
from forkpoint.events import Condensation, ManifestChanged, NewEvent, SkillActivated, Usage
from forkpoint.history.state import State
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import CacheIdentity
from forkpoint.store import open_store
from forkpoint.store.protocol import Store
from forkpoint.store.values import Head, NewConversation, NewFork, StoredConversation
from forkpoint.testing.samples import exchange, remembers
from forkpoint.workspace.folders import Made

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[2] / "docs" / "forks.md"

Fate: TypeAlias = Literal["stays", "comes", "moves"]
"""What becomes of a field: the conversation's own stays, the branch's comes, or it is another one than either."""


class Row(Struct, frozen=True):
    """One row: what it is about, and what becomes of each field that it covers."""

    name: str
    fields: Mapping[str, Fate]  # by the name of the class and of the field


def all_of(fate: Fate, kind: str, *fields: str) -> dict[str, Fate]:
    return {f"{kind}.{field}": fate for field in fields}


TABLE: Sequence[Row] = (
    Row(
        "itself",
        all_of("stays", "StoredConversation", "id", "tenant", "name", "family", "lineage", "draft", "created", "used")
        | all_of("moves", "StoredConversation", "revision", "updated"),
    ),
    Row("title and tags", all_of("stays", "StoredConversation", "title", "tags")),
    Row(
        "events",
        all_of("comes", "StoredConversation", "head")
        | all_of("comes", "Head", "position", "digest", "turn", "open_calls", "totals"),
    ),
    Row(
        "agent state, activated skills, condensations",
        all_of("comes", "Head", "state_of", "state")
        | all_of("comes", "State", "values", "skills", "manifest", "kept_from", "summary", "partial"),
    ),
    Row(
        "agent",
        all_of("moves", "StoredConversation", "settings")
        | all_of("moves", "Settings", "agent")
        | all_of("comes", "Settings", "system", "project")
        | all_of("comes", "Document", "llm", "instructions", "tools", "client_tools", "output", "name", "skills")
        | all_of("comes", "Document", "condenser", "sub_agents", "mcp", "secrets"),
    ),
    Row("approval policy, limits, hooks", all_of("stays", "Document", "approval", "unattended", "limits", "hooks")),
    Row("standing approvals", {}),
    Row("workspace and trust", all_of("stays", "Settings", "workspace", "made", "placed", "guarded_by")),
    Row("sub-agents", all_of("stays", "Settings", "sub_agent")),
    Row(
        "prompt cache key",
        all_of("moves", "StoredConversation", "cache")
        | all_of("comes", "CacheIdentity", "key", "session")
        | all_of("moves", "CacheIdentity", "inherited_from", "manifest")
        | all_of("stays", "CacheIdentity", "dropped"),
    ),
    Row(
        "metrics",
        all_of("moves", "StoredConversation", "own_from", "inherited")
        | all_of("stays", "StoredConversation", "carries_metrics"),
    ),
    Row("status", all_of("stays", "StoredConversation", "status", "open_turn")),
)

WALKED: Sequence[type[Struct]] = (StoredConversation, Head, State, Settings, Document, CacheIdentity)

ALIKE = {
    "StoredConversation.tenant": "a family is of one tenant",
    "StoredConversation.family": "a family is one",
    "StoredConversation.draft": "a draft neither keeps nor is kept: test_keep.py",
    "StoredConversation.status": "while a turn is open nothing is kept: test_keep.py; one in the branch stays there",
    "StoredConversation.open_turn": "while a turn is open nothing is kept: test_keep.py",
    "Head.open_calls": "a branch with open calls of the client is not kept: test_keep.py",
    "Head.state": "it is only there in the middle of a turn: forkpoint.testing.conformance.branches.keeps",
    "State.partial": "nothing is condensed in the middle of a turn here",
    "CacheIdentity.dropped": "an identity that comes was not dropped: test_keep.py",
}
"""Fields in which conversation and branch cannot differ, or do not here, and why that is no gap."""


class Case(Struct):
    """A conversation, and a branch of it that differs in all that can differ; as they were before the keep."""

    store: Store
    keeper: StoredConversation
    branch: StoredConversation
    before: dict[str, Any]
    theirs: dict[str, Any]


def settings_of(who: str) -> str:
    """Settings that say in each field whose they are. A keep puts documents together, and need not understand them."""
    document: dict[str, Any] = {field: f"{field} of {who}" for field in Document.__struct_fields__}
    document["llm"] = {"model": f"scripted/{who}"}
    return Settings(
        agent=msgspec.Raw(msgspec.json.encode(document)),
        workspace=f"/{who}",
        system=f"system of {who}",
        project=f"project of {who}",
        placed=f"placed for {who}",
        guarded_by=f"/guards/{who}",
        made=Made(path=f"/{who}", kind="copy", source="/"),
        sub_agent=SubAgentOf(parent=who, path=f"/root/{who}", nickname=who, depth=1),
    ).to_json()


async def values_of(store: Store, id: str) -> dict[str, Any]:
    """Every walked field of a conversation, as it is stored."""
    record = await store.read(id)
    settings = Settings.from_json(record.settings)
    document = json.loads(settings.agent_json or "{}")
    seen = (record, record.head, await store.state(id), settings, CacheIdentity.from_json(record.cache))
    values = {f"{type(one).__name__}.{name}": getattr(one, name) for one in seen for name in one.__struct_fields__}
    return values | {f"Document.{name}": document.get(name) for name in Document.__struct_fields__}


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    async with await open_store("memory:") as store:
        keeper = await store.create(
            NewConversation(id=new_id(), name="mine", settings=settings_of("mine"), title="Mine", tags=(("a", "mine"),))
        )
        identity = CacheIdentity("key of mine", "session of mine").to_json()
        first = new_id()
        await store.note(keeper.id, first, exchange("one"), cache=identity, usage=Usage(calls=1, input=1))
        new = NewFork(
            id=new_id(),
            name="theirs",
            settings=settings_of("theirs"),
            cache=CacheIdentity("key of theirs", "session of theirs").to_json(),
            title="Theirs",
            tags=(("a", "theirs"),),
            carries_metrics=True,
        )
        branch = await store.fork(keeper.id, new)
        for id, who in ((keeper.id, "mine"), (branch.id, "theirs")):
            told = [*exchange(who), remembers("who", f'"{who}"'), NewEvent(SkillActivated(who, f"How {who} works."))]
            await store.note(id, new_id(), told * (2 if who == "theirs" else 1), usage=Usage(calls=1, input=len(who)))
        await store.note(branch.id, new_id(), [NewEvent(Condensation("They talked.", kept_from=4))])
        await store.note(branch.id, new_id(), [NewEvent(ManifestChanged(hash="hash of theirs", manifest="{}"))])
        await store.note(branch.id, new_id(), exchange("and on"))
        await store.change_approvals(keeper.id, '["mine"]', if_approvals="[]")
        yield Case(
            store,
            await store.read(keeper.id),
            await store.read(branch.id),
            await values_of(store, keeper.id),
            await values_of(store, branch.id),
        )


def without_a_row(kind: type[Struct]) -> list[str]:
    covered = {field for row in TABLE for field in row.fields}
    return [name for field in kind.__struct_fields__ if (name := f"{kind.__name__}.{field}") not in covered]


@pytest.mark.parametrize("kind", WALKED, ids=lambda kind: kind.__name__)
def test_every_field_that_is_stored_has_a_row_in_the_table(kind: type[Struct]) -> None:
    missing = without_a_row(kind)
    assert not missing, (
        f"No row of the table of what comes with a kept branch covers {', '.join(missing)}. Decide whether it comes or"
        " stays, in `Settings.keeping`, `GUARDS` or `Store.keep`, and in the table of docs/forks.md; then add it here."
    )


def test_the_walk_finds_a_field_that_nobody_thought_of() -> None:
    for kind in (StoredConversation, Settings, Document):
        more = defstruct(kind.__name__, [("colour", str, "blue")], bases=(kind,), frozen=True, kw_only=True)
        assert without_a_row(more) == [f"{kind.__name__}.colour"]


def test_no_row_covers_what_is_no_longer_there_and_no_field_has_two() -> None:
    named = [field for row in TABLE for field in row.fields]
    there = {f"{kind.__name__}.{field}" for kind in WALKED for field in kind.__struct_fields__}
    assert set(named) == there
    assert len(named) == len(set(named)), "two rows of TABLE say what becomes of one field: keep one"
    assert set(ALIKE) <= there


def test_the_guards_of_an_agent_are_the_fields_that_stay() -> None:
    fates = {field: fate for row in TABLE for field, fate in row.fields.items()}
    assert {f"Document.{field}" for field in GUARDS} == {
        field for field, fate in fates.items() if field.startswith("Document.") and fate == "stays"
    }


def test_the_guide_shows_the_same_rows() -> None:
    section = GUIDE.read_text().split("## Keep\n")[1].split("\n## ")[0]
    shown = re.findall(r"^\| \*\*(.+?)\*\* \|", section, re.MULTILINE)
    assert shown == [row.name for row in TABLE], "docs/forks.md and TABLE name different rows: bring them together"


async def test_conversation_and_branch_differ_in_every_field(case: Case) -> None:
    shown = [field for row in TABLE for field, fate in row.fields.items() if fate != "moves"]
    same = [field for field in shown if case.before[field] == case.theirs[field]]
    idle = [field for field in same if field not in ALIKE]
    assert not idle, f"the example cannot show what becomes of {idle}"


async def test_each_field_is_as_its_row_says(case: Case) -> None:
    engine = Engine(case.store, owns_store=False)
    _, aside = await engine.branches.keep(case.keeper.id, "theirs")
    now = await values_of(case.store, case.keeper.id)
    wrong = []
    for row in TABLE:
        for field, fate in row.fields.items():
            expected = case.before[field] if fate == "stays" else case.theirs[field]
            if (now[field] == expected) != (fate != "moves"):
                wrong.append(f"{field} ({row.name}) {fate}, but {case.before[field]!r} became {now[field]!r}")
    assert not wrong, "\n".join(wrong)
    assert await case.store.approvals(case.keeper.id) == '["mine"]', "standing approvals stay"
    assert now["CacheIdentity.inherited_from"] == case.branch.id
    assert now["CacheIdentity.manifest"] == "hash of theirs"
    assert (now["StoredConversation.own_from"], now["StoredConversation.inherited"]) == (
        case.branch.head.ordinal,
        case.branch.head.totals,
    )
    assert await values_of(case.store, case.branch.id) == case.theirs, "the branch stays as it is"
    assert aside is not None
    left = await values_of(case.store, aside[0].id)
    for field in ("StoredConversation.head", "StoredConversation.settings", "CacheIdentity.key"):
        assert left[field] == case.before[field], f"what was set aside has another {field}"


async def test_an_undo_brings_everything_back_but_what_was_spent_and_when(case: Case) -> None:
    engine = Engine(case.store, owns_store=False)
    _, aside = await engine.branches.keep(case.keeper.id, case.branch.id)
    assert aside is not None
    await engine.branches.keep(case.keeper.id, aside[0].id)
    now = await values_of(case.store, case.keeper.id)
    changed = {field for field, value in now.items() if value != case.before[field]}
    assert changed == {
        *("StoredConversation.revision", "StoredConversation.updated"),
        *("StoredConversation.own_from", "StoredConversation.inherited"),  # the branch set aside counts it now
        *("StoredConversation.cache", "CacheIdentity.inherited_from", "CacheIdentity.manifest"),  # with the same key
    }
