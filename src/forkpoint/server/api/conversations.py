"""Conversations: made, listed, read, described, deleted; who answers in them."""

from typing import Annotated

from fastapi import Query, Response
from msgspec import Struct
from msgspec.structs import replace
from pydantic import StringConstraints

from forkpoint.agent.agent import Agent
from forkpoint.backend.names import as_id, check_chosen_name, with_title
from forkpoint.backend.options import ConversationFilter, Draft
from forkpoint.backend.results import Info
from forkpoint.backend.settings import Settings
from forkpoint.engine import check_trust, taken_over
from forkpoint.errors import BadWorkspace, Invalid, NotFound
from forkpoint.server.agents.catalog import AgentItem
from forkpoint.server.api.bodies import (
    ChangeAgent,
    CreateConversation,
    DescribeConversation,
    FirstTurn,
    Fork,
    PreviewRequest,
    RunTurn,
)
from forkpoint.server.http.call import ApiCall, CallMade, Calls, Conversation, answer, etag
from forkpoint.store import ListOrder, Status
from forkpoint.wire.documents import DeletedDocument, InfoDocument, PageDocument, info_document
from forkpoint.wire.message_lists import read_list

calls = Calls("conversations")

AGENT = "bad_agent bad_model bad_workspace"
MAKING = f"{AGENT} bad_argument bad_setting broken_settings unsafe_settings trust_refused trust_changed"
"""Errors of a new conversation: in its agent, its workspace, or its trust."""


class AgentsDocument(Struct, frozen=True):
    """The agents that the server offers."""

    items: tuple[AgentItem, ...]


@calls("GET", "/api/agents", role="read", gives=AgentsDocument)
async def list_agents(call: CallMade) -> Response:
    """The agents that the server offers, by name."""
    return answer(AgentsDocument(call.services.agents.items()))


@calls(
    "POST",
    "/api/conversations",
    role="use",
    takes=CreateConversation,
    gives=InfoDocument,
    status=201,
    once=True,
    locates=True,
    tags=True,
    raises=f"exists bad_name key_reused not_found not_whole bad_messages too_large {MAKING}",
)
async def create_conversation(call: CallMade) -> Response:
    """Make a conversation. It stays, even if no turn ever commits."""
    body = await call.body(CreateConversation)
    history = None if body.messages is None else read_list(body.messages, body.format)
    draft = await draft_of(call, body, body.id, chosen=is_chosen(body))
    return created(await call.backend.create(replace(draft, history=history), key=call.key))


@calls("GET", "/api/conversations", role="read", gives=PageDocument[InfoDocument], raises="bad_cursor not_found")
async def list_conversations(
    call: CallMade,
    cursor: Annotated[str | None, Query(description="`next` of an earlier page.", max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 50,
    order: Annotated[
        ListOrder, Query(description="The newest first, or the one first whose last turn began last, to the minute.")
    ] = "created",
    status: Annotated[Status | None, Query(description="Only those that stand so.")] = None,
    tag: Annotated[
        list[Annotated[str, StringConstraints(pattern="^[^=]+=", max_length=4096)]] | None,
        Query(description="KEY=VALUE; all given ones must match.", examples=[["kind=debug"]]),
    ] = None,
    sub_agents: Annotated[bool, Query(description="With sub-agents.")] = False,
    sides: Annotated[bool, Query(description="With what clients asked beside conversations.")] = False,
    asides: Annotated[bool, Query(description="With branches that were set aside.")] = True,
    drafts: Annotated[bool, Query(description="With conversations in which no turn has committed yet.")] = False,
    glance: Annotated[
        bool, Query(description="With the first words of each, and how many branches and sides are folded under it.")
    ] = False,
    parent: Annotated[
        str | None, Query(description="Only the sub-agents of this conversation, by its id or name.", max_length=256)
    ] = None,
) -> Response:
    """Conversations. Sub-agents, sides and drafts are left out unless they are asked for."""
    wanted = ConversationFilter(
        tags=tags_of(tag or ()),
        status=status,
        sub_agents=sub_agents,
        sides=sides,
        asides=asides,
        drafts=drafts,
        parent=None if parent is None else (await call.found(parent))[0].id,
    )
    page = await call.backend.conversations(cursor=cursor, limit=limit, order=order, wanted=wanted, glance=glance)
    return answer({"items": [info_document(info) for info in page.items], "next": page.next})


@calls("GET", "/api/conversations/{id}", role="read", gives=InfoDocument, tags=True, raises="not_found")
async def get_conversation(call: CallMade, id: Conversation) -> Response:
    """One conversation."""
    info, _ = await call.found(id)
    return answer(info_document(info), ETag=etag(info))


@calls(
    "PATCH",
    "/api/conversations/{id}",
    role="use",
    takes=DescribeConversation,
    gives=InfoDocument,
    tags=True,
    if_match=True,
    raises="not_found exists bad_name not_whole too_large stale",
)
async def describe_conversation(call: CallMade, id: Conversation) -> Response:
    """Give it a title, tags or another name. A turn that runs is not disturbed.

    All of it is changed, or nothing. With `If-Match`, nothing of what the conversation shows may have changed: neither
    name, title and tags, nor status.
    """
    body = await call.body(DescribeConversation)
    before, _ = await call.found(id)
    title, others = with_title(body.title, body.tags)
    info = await call.backend.describe(
        before.id,
        title=title,
        tags=None if body.tags is None else others,
        name=None if body.name is None else check_chosen_name("name", body.name),
        if_info=call.check_version(before),
    )
    if info.name != before.name:
        call.services.chat.renamed(call.tenant, before.name, info.name)
    return answer(info_document(info), ETag=etag(info))


@calls(
    "DELETE",
    "/api/conversations/{id}",
    role="operate",
    status=204,
    if_match=True,
    also_gives=DeletedDocument,
    raises="not_found busy held stale",
)
async def delete_conversation(call: CallMade, id: Conversation) -> Response:
    """Delete it and its sub-agents, never a fork. What was spent stays counted in the family.

    If a folder was made for it, or for what it shares one with, the answer says whether that was removed too, or why it
    stays.
    """
    info, _ = await call.found(id)
    left = await call.backend.delete(info.id, if_revision=call.if_revision)
    call.services.collector.soon()
    call.services.watching.moved(call.tenant, info.id)
    return Response(status_code=204) if left is None else answer(DeletedDocument(left))


@calls(
    "PUT",
    "/api/conversations/{id}/agent",
    role="use",
    takes=ChangeAgent,
    optional=False,
    gives=InfoDocument,
    tags=True,
    if_match=True,
    raises=f"not_found busy turn_open stale {AGENT}",
)
async def change_agent(call: CallMade, id: Conversation) -> Response:
    """Another agent answers from here on. Recorded in the history; the conversation must have no open turn."""
    body = await call.body(ChangeAgent)
    agent = call.agent_given(body.agent)
    info, settings = await call.found(id)
    changed, agent = taken_over(replace(settings, system=None), agent)
    info = await call.backend.change(info.id, changed, agent, if_revision=call.if_revision)
    call.services.watching.moved(call.tenant, info.id)
    return answer(info_document(info), ETag=etag(info))


def created(info: Info) -> Response:
    """The answer to a request that made a conversation."""
    return answer(info_document(info), 201, Location=f"/api/conversations/{info.id}", ETag=etag(info))


def is_chosen(body: CreateConversation | Fork) -> bool:
    """Whether the client chose the id or the name, so that a repeat with the same key must have the same."""
    return body.chosen and (body.id is not None or body.name is not None)


async def draft_of(call: ApiCall, body: CreateConversation | FirstTurn, given: str | None, *, chosen: bool) -> Draft:
    """The draft of the conversation in a body, with its project's instructions. Nothing is stored yet."""
    _check_may_trust(call, body)
    id, name = as_id(given)
    agent = call.agent_given(body.agent)
    workspace = call.services.agents.workspace_for(body.workspace, agent)
    check_trust(body.trust, workspace, "a new conversation")
    title, others = with_title(body.title, body.tags)
    draft = Draft(
        id=id,
        name=name if body.name is None else check_chosen_name("name", body.name),
        settings=Settings.of(agent, workspace),
        chosen=chosen,
        title=title,
        tags=others,
        trust=body.trust,
        budget=body.budget,
        family_budget=body.family_budget,
    )
    return (await call.backend.prepared(draft, agent))[0]


def _check_may_trust(call: ApiCall, body: CreateConversation | FirstTurn) -> None:
    """Raises `BadWorkspace` unless the server lets clients say what is trusted."""
    if body.trust is not None and not call.services.settings.allow_trust:
        why = "this server does not leave that to its clients (allow_trust in its file)"
        raise BadWorkspace.trust_refused((body.workspace or "its workspace")[:200], why)


def tags_of(given: "list[str] | tuple[str, ...]") -> dict[str, str]:
    """The tags of ``?tag=KEY=VALUE``. Raises `Invalid`."""
    tags = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise Invalid("tag", "it is not of the form KEY=VALUE")
        tags[key] = value
    return tags


class Target(Struct, frozen=True):
    """Where a turn runs: in a conversation that exists, or in a draft that the turn makes."""

    conversation: str
    agent: Agent
    draft: Draft | None = None
    allow: frozenset[str] = frozenset()  # what may be missing there


async def target_of(call: ApiCall, id: str, body: RunTurn | PreviewRequest) -> Target:
    """The conversation with this id or name. If there is none, the draft in ``create``. Raises `NotFound`."""
    create = body.create
    if create is not None:
        _check_may_trust(call, create)
    if create is None or not create.chosen:
        try:
            info, settings = await call.found(id)
            agent, allow = call.going_on(info, settings, body)
            return Target(info.id, agent, allow=allow)
        except NotFound:
            if create is None:
                raise
    draft = await draft_of(call, create, id, chosen=create.chosen)
    await call.backend.placement.free_name(draft.name or draft.id)
    return Target(draft.id, call.services.agents.bound(draft.settings.agent_json or ""), draft)
