"""Branches: forks, rewinds, keeps, how two branches differ, what one brings from another, and the family as a whole."""

from typing import Annotated

from fastapi import Query, Response

from forkpoint.backend.allowance import NOTHING
from forkpoint.backend.bring import BringOptions
from forkpoint.backend.diff import LIMIT, MOST
from forkpoint.backend.names import as_id, as_point, check_chosen_name, with_title
from forkpoint.backend.options import ForkOptions
from forkpoint.backend.results import Branch
from forkpoint.backend.settings import Settings
from forkpoint.backend.state import as_state
from forkpoint.errors import BadWorkspace, NotFound
from forkpoint.server.api.bodies import Bring, Fork, Keep, Rewind, results_in
from forkpoint.server.api.conversations import AGENT, created, is_chosen
from forkpoint.server.api.turns import RUNNING
from forkpoint.server.http.call import ApiCall, CallMade, Calls, Conversation, answer, etag
from forkpoint.wire.branches import BroughtDocument, DiffDocument, brought_document, diff_document
from forkpoint.wire.documents import FamilyDocument, InfoDocument, KeepDocument, RewindDocument, info_document
from forkpoint.workspace.folders import Kind

calls = Calls("branches", under="/api/conversations/{id}")


@calls(
    "POST",
    "/fork",
    role="use",
    takes=Fork,
    gives=InfoDocument,
    status=201,
    once=True,
    if_match=True,
    locates=True,
    tags=True,
    raises=(
        "not_found exists bad_name bad_position cannot_resume no_agent key_reused not_whole too_large stale "
        f"bad_argument workspace_not_made forbidden {AGENT}"
    ),
)
async def fork_conversation(call: CallMade, id: Conversation) -> Response:
    """A new conversation that shares this one's history up to a point, and nothing else.

    Never waits for a turn that runs. Costs the same however long the history is. It works in the same folder, unless
    `workspace` says otherwise: `isolation` of what is answered says which it is.
    """
    body = await call.body(Fork)
    if body.budget is not None:
        call.check_role("operate")  # else the family's budget would limit nobody
    isolation = _isolation(body)
    workspace = None if isolation is not None or body.workspace == "share" else body.workspace
    source, theirs, placed = id, None, workspace is not None and body.agent is None
    try:
        info, settings = await call.found(id)
        source = info.id
        _check_may_isolate(call, isolation, settings)
        if placed or (body.cache == "inherit" and settings.agent_json is not None):
            theirs = call.agent_of(info, settings)
    except NotFound:
        if call.key is None or placed:
            raise  # else a repeat finds what the first one made, though its source is gone
    agent = None if body.agent is None else call.agent_given(body.agent)
    fork, name = as_id(body.id)
    title, others = with_title(body.title, body.tags)
    if workspace is not None and (answers := agent or theirs) is not None:
        workspace = call.services.agents.workspace_for(workspace, answers)
    options = ForkOptions(
        id=fork,
        name=name if body.name is None else check_chosen_name("name", body.name),
        chosen=is_chosen(body),
        at=as_point(body.at),
        before=as_point(body.before),
        agent=agent,
        title=title,
        tags=others,
        reset_metrics=body.reset_metrics,
        cache=body.cache,
        workspace=workspace,
        isolation=isolation,
        results={one.call_id: one for one in results_in(body.results, call.services.settings.max_messages)},
        state=as_state("fork", body.state),
        budget=body.budget,
    )
    made, _ = await call.backend.branches.fork(source, options, theirs, key=call.key, if_revision=call.if_revision)
    return created(made)


@calls(
    "POST",
    "/rewind",
    role="use",
    takes=Rewind,
    optional=False,
    gives=RewindDocument,
    once=True,
    if_match=True,
    tags=True,
    raises="not_found bad_position busy turn_open key_reused stale",
)
async def rewind_conversation(call: CallMade, id: Conversation) -> Response:
    """Move the head back. What stood after that point is kept in a branch that is set aside."""
    body = await call.body(Rewind)
    info, _ = await call.found(id)
    aside = await call.backend.branches.rewind(
        info.id, at=as_point(body.at), before=as_point(body.before), key=call.key, if_revision=call.if_revision
    )
    call.services.watching.moved(call.tenant, info.id)
    now, _ = await call.found(info.id)
    kept = None if aside is None else info_document(aside[0])
    return answer(RewindDocument(info_document(now), kept), ETag=etag(now))


@calls(
    "POST",
    "/keep",
    role="use",
    takes=Keep,
    optional=False,
    gives=KeepDocument,
    once=True,
    if_match=True,
    tags=True,
    raises="not_found cannot_keep keeps_itself branch_not_ready busy turn_open cannot_resume key_reused stale",
)
async def keep_branch(call: CallMade, id: Conversation) -> Response:
    """Move the head to the head of a branch of the family. What stood there is kept in a branch that is set aside.

    The agent and the cache key come with the branch. Name, title and tags, approval, limits, hooks, standing approvals
    and the workspace stay. The branch stays as it is. To undo it, keep the branch that was set aside.
    """
    body = await call.body(Keep)
    info, _ = await call.found(id)
    (now, _), aside = await call.backend.branches.keep(info.id, body.branch, key=call.key, if_revision=call.if_revision)
    call.services.watching.moved(call.tenant, info.id)
    kept = None if aside is None else info_document(aside[0])
    return answer(KeepDocument(info_document(now), kept), ETag=etag(now))


@calls("GET", "/tree", role="read", gives=FamilyDocument, raises="not_found")
async def get_tree(
    call: CallMade,
    id: Conversation,
    asides: Annotated[bool, Query(description="With what rewinds and keeps have set aside.")] = True,
    agents: Annotated[bool, Query(description="With sub-agents, and what branched off them.")] = True,
    sides: Annotated[bool, Query(description="With what clients asked beside its conversations.")] = True,
) -> Response:
    """Its family: forks, sub-agents, set-aside branches and sides, sources before what branched off them.

    `lineage.kind` tells them apart. A sub-agent has a `parent`, a `path`, a `nickname`, a `role` and a `depth`;
    its `lineage` has the turn and the call that spawned it.
    """
    info, _ = await call.found(id)
    family: list[Branch] = [
        branch for branch in await call.backend.branches.tree(info.id) if agents or not branch.is_sub_agent
    ]
    for branch in family:  # grows while it is walked: sources first
        family += (one for one in branch.branches if agents or not one.is_sub_agent)
    hidden = {kind for kind, is_shown in (("aside", asides), ("side", sides)) if not is_shown}
    shown = [branch.info for branch in family if branch.info.lineage.kind not in hidden]
    return answer(FamilyDocument(tuple(map(info_document, shown))))


@calls("GET", "/diff", role="read", gives=DiffDocument, raises="not_found")
async def get_diff(
    call: CallMade,
    id: Conversation,
    other: Annotated[
        str,
        Query(alias="with", description="The other conversation's id or name.", examples=["other-fix"], max_length=256),
    ],
    limit: Annotated[int, Query(ge=1, le=MOST, description="How many turns and notes of each are compared.")] = LIMIT,
) -> Response:
    """How it differs from another conversation: where their paths part, and what each has since, turn by turn.

    `a` is this conversation and `b` the other one. Only what is committed is compared. What both share is not read.
    """
    info, _ = await call.found(id)
    another, _ = await call.found(other)
    return answer(diff_document(await call.backend.branches.diff(info.id, another.id, limit=limit)))


@calls(
    "POST",
    "/bring",
    role="use",
    takes=Bring,
    optional=False,
    gives=BroughtDocument,
    once=True,
    if_match=True,
    raises=f"not_found bring_refused key_reused stale too_large {RUNNING}",
)
async def bring_from_branch(call: CallMade, id: Conversation) -> Response:
    """Bring what a branch has said since the common ancestor. Recorded as a note; no turn may be open.

    `answer` is its last finished answer, with what was asked, and `summary` what the conversation's model makes of it
    all: each is one message of the user. `turns` are copies of all whole exchanges. Nothing that the branch has spent
    is counted here; what a summary costs is.
    """
    body = await call.body(Bring)
    info, settings = await call.found(id)
    agent, allow = call.going_on(info, settings, body) if body.what == "summary" else (None, NOTHING)
    options = BringOptions(branch=body.branch, what=body.what, key=call.key, if_revision=call.if_revision, allow=allow)
    done = await call.backend.branches.bring(info.id, options, agent)
    call.services.watching.moved(call.tenant, info.id)
    return answer(brought_document(done))


def _isolation(body: Fork) -> Kind | None:
    return "worktree" if body.workspace == "worktree" else "copy" if body.workspace == "copy" else None


def _check_may_isolate(call: ApiCall, isolation: Kind | None, settings: Settings) -> None:
    """Raises `BadWorkspace` where no folders are made for clients: they cost the server's disk."""
    if isolation is not None and not call.services.agents.allow_isolation:
        why = "this server makes no folders for its clients (allow_isolation in its file)"
        raise BadWorkspace.workspace_not_made(isolation, settings.workspace or "its workspace", why)
