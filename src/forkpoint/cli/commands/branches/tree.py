"""``forkpoint tree``, ``fork`` and ``rewind``: a conversation's family, drawn; and how it branches."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, assert_never

import typer
from rich.text import Text
from rich.tree import Tree

from forkpoint.agent.agent import Agent
from forkpoint.backend.results import tree_of
from forkpoint.cli import figures
from forkpoint.cli.answerer.answerer import Answerer, Api, ApiKeyEnv, BaseUrl, ModelOptions
from forkpoint.cli.commands.branches.budget import OwnBudget, budget_from
from forkpoint.cli.common import (
    Allow,
    Id,
    Key,
    Store,
    Tags,
    newest_turns,
    only_one,
    opened,
    pairs_from,
    short_names,
    tags_from,
    value_from,
)
from forkpoint.cli.options import option
from forkpoint.cli.output import Json, display, one_line, print_json, tell
from forkpoint.cli.questions.project import ModelsHere
from forkpoint.conversation import Branch, Conversation, Info, Stats
from forkpoint.conversation.look import is_remote
from forkpoint.errors import NoSuchTurn, NotFound
from forkpoint.llm.model import LLM
from forkpoint.wire.documents import info_document, plain, stats_document

_TURN = 13  # of a turn's id, as much as of a conversation's


def tree(
    conversation: Id,
    no_agents: Annotated[bool, option("--no-agents", "Without sub-agents, and what branched off them.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Draw a conversation's forks, its sub-agents, its sides, and what was set aside.

    The whole family is drawn, from its root on: where each branch parts, how many events are its own, what it has used.
    A sub-agent has another mark, its path, and the turn that spawned it.

    \b
    Examples:
      forkpoint tree build-1234
      forkpoint tree build-1234 --no-agents
    """
    with opened(conversation, store) as this:
        branches = without_agents(this.tree()) if no_agents else this.tree()
        stats = stats_of(branches, store)
    if json:
        family = [
            plain(info_document(info)) | {"depth": depth, "stats": stats_document(stats[info.id])}
            for info, depth in walk(branches)
            if info.id in stats
        ]
        print_json({"conversation": this.id, "branches": family})
    else:
        display(draw(branches, here=this.id, stats=stats))
        if any(info.lineage.kind == "sub_agent" for info, _ in walk(branches)):
            display(Text("○ conversation   ◇ sub-agent   ● ◆ the one you asked for", style="dim"))


def fork(
    conversation: Id,
    at: Annotated[str | None, option("--at ID", "The last turn or event that the fork has. Default: all.")] = None,
    before: Annotated[str | None, option("--before ID", "The first turn or event that it does not have.")] = None,
    name: Annotated[str | None, option("--name NAME", "A name to know the fork by.")] = None,
    title: Annotated[str | None, option("--title TEXT", "What it is about.")] = None,
    tag: Tags = None,
    inherit_cache: Annotated[
        bool, option("--inherit-cache", "Show providers the source's cache key, where its prompt is warm.")
    ] = False,
    keep_metrics: Annotated[
        bool, option("--keep-metrics", "Count what the source had spent as the fork's own.")
    ] = False,
    model: Annotated[str | None, option("--model NAME", "Another model for the fork.")] = None,
    base_url: BaseUrl = None,
    api: Api = None,
    api_key_env: ApiKeyEnv = None,
    instructions: Annotated[str | None, option("--instructions TEXT", "Other instructions for the fork.")] = None,
    agent: Annotated[str | None, option("--agent MODULE:NAME", "Another agent for the fork, in your own code.")] = None,
    workspace: Annotated[
        str | None,
        option(
            "--workspace WHERE",
            "Where its tools work: share, worktree, copy, or a folder. Default: share, the same folder.",
        ),
    ] = None,
    result: Annotated[
        list[str] | None,
        option("--result CALL=TEXT", "Another result for a call; --at names the call, or its turn. Repeatable."),
    ] = None,
    state: Annotated[
        list[str] | None, option("--state KEY=JSON", "A key of the agent's state to begin with. Repeatable.")
    ] = None,
    budget: OwnBudget = None,
    allow: Allow = None,
    key: Key = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Begin a conversation that shares another's history.

    The history is shared up to a point, by default all that is committed. The fork has the source's agent, with
    another model or other instructions if you name them, or an agent of your own. The source is not changed, and
    never waited for.

    It works in the same folder, and sees what is changed there. With --workspace worktree it has a branch and a folder
    of the repository, and with copy a copy; both with all that is there now. `forkpoint delete` removes them with the
    fork, if nothing is lost by that.

    With --result a call has another result in the fork, and with --state the fork begins with another state of
    the agent. `forkpoint go-on` then lets the model go on from there.

    \b
    Examples:
      forkpoint fork build-1234 --title "Try the other fix"
      forkpoint fork build-1234 --workspace worktree
      forkpoint fork build-1234 --at 3-12 --name second-try --inherit-cache
      forkpoint fork build-1234 --at 3-12 --result call_7="The disk is empty." --name what-if
      forkpoint fork build-1234 --budget dollars=1
    """
    only_one({"--at": at, "--before": before})
    who = Answerer(ModelOptions(model, base_url, api, api_key_env), instructions, agent)
    changed = who.is_given and agent is None
    replacement = who.at(store) if agent is not None else None
    has_another = workspace not in (None, "share", "worktree", "copy")
    without = [*(allow or ()), *(["workspace"] if has_another else [])]
    with opened(conversation, store, bind=changed, allow=without) as source:
        if changed:
            replacement = _changed(source, who, store)
        made = source.fork(
            conversation_id=name,
            at=at,
            before=before,
            agent=replacement,
            title=title,
            tags=tags_from(tag),
            reset_metrics=not keep_metrics,
            cache="inherit" if inherit_cache else "own",
            workspace=workspace or "share",
            results=pairs_from("--result", result),
            state={name: value_from("--state", name, text) for name, text in pairs_from("--state", state).items()},
            budget=budget_from(budget),
            key=key,
        )
        with made:
            info = made.info()
    if json:
        print_json(info_document(info))
    else:
        print(info.id if info.name == info.id else f"{info.id}  {info.name}")
        if info.workspace is not None:
            tell(f"It works in {one_line(folder_of(info))}.")
        for note in info.isolation.notes if info.isolation is not None else ():
            tell(f"{one_line(note)}.")


def rewind(
    conversation: Id,
    at: Annotated[str | None, option("--at ID", "The turn or event that is to be the last one.")] = None,
    before: Annotated[str | None, option("--before ID", "The first turn or event that is to go.")] = None,
    turns: Annotated[int | None, option("--turns N", "How many turns to go back.", min=1)] = None,
    key: Key = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Go back in a conversation.

    What stood after that point is kept, under an id of its own.

    \b
    Example:
      forkpoint rewind build-1234 --turns 1
    """
    only_one({"--at": at, "--before": before, "--turns": turns}, needed=True)
    if turns is not None and key is not None:
        why = "sent again, --turns would be counted from another head; name the place with --at or --before"
        raise typer.BadParameter(why, param_hint="--key")
    with opened(conversation, store) as this:
        if turns is not None:
            before = turns_back(this, turns)
        aside = this.rewind(at=at, before=before, key=key)
        if aside is not None:
            with aside:
                kept = aside.info()
        now = this.info()
    if json:
        print_json({"conversation": info_document(now), "aside": info_document(kept) if aside is not None else None})
    elif aside is None:
        print(f"Nothing stands after that point. {one_line(now.name)} is as it was.")
    else:
        own = figures.counted(kept.events - now.events, "event")
        print(f"{one_line(now.name)} has {figures.counted(now.events, 'event')} now.")
        print(f"What stood after that ({own}) is kept as {kept.id}")


def draw(branches: tuple[Branch, ...], *, here: str | None = None, stats: Mapping[str, Stats] | None = None) -> Tree:
    """A family as a tree for rich to print. ``here`` is the id of the conversation that is marked.

    ``stats``, by id, adds tokens and cached share; `stats_of` reads them.
    """
    names = short_names(info for info, _ in walk(branches))
    for info, _ in walk(branches):
        if info.path is not None:
            names[info.id] = f"{info.path} {names[info.id]}"
    drawn = Tree("", hide_root=True, guide_style="dim")
    left = [(drawn, branch) for branch in reversed(branches)]
    while left:
        above, branch = left.pop()
        info = branch.info
        node = above.add(_label(info, names[info.id], info.id == here, (stats or {}).get(info.id)))
        left += [(node, one) for one in reversed(branch.branches)]
    return drawn


def stats_of(branches: tuple[Branch, ...], store: str | None) -> dict[str, Stats]:
    """What each conversation of a family has used, by id."""
    found = {}
    for info, _ in walk(branches):
        with suppress(NotFound), Conversation.open(info.id, bind=False, store=store) as one:  # or deleted meanwhile
            found[info.id] = one.stats()
    return found


def walk(branches: tuple[Branch, ...]) -> Iterator[tuple[Info, int]]:
    """All conversations of a family with their depth, each before what branched off it."""
    left = [(branch, 0) for branch in reversed(branches)]
    while left:
        branch, depth = left.pop()
        yield branch.info, depth
        left += [(one, depth + 1) for one in reversed(branch.branches)]


def without_agents(branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
    """A family without its sub-agents, and without what branched off them."""
    hidden: set[str] = set()
    shown: list[Info] = []
    for info, _ in walk(branches):
        if info.lineage.kind == "sub_agent" or info.lineage.source in hidden:
            hidden.add(info.id)
        else:
            shown.append(info)
    return tree_of(shown)


def origin(info: Info, source: str | None = None) -> str:
    """Where a conversation comes from, in words. ``source`` is the name of the other conversation, if any."""
    after = "" if info.lineage.at is None else f" after {figures.counted(info.lineage.at.ordinal, 'event')}"
    match info.lineage.kind:
        case "root":
            return "root"
        case "fork":
            return "fork" + (f" of {source}" if source else "") + (after or " at the start")
        case "aside":
            return "set aside" + (f" from {source}" if source else "") + (after or " from the start")
        case "side":
            return "side" + (f" of {source}" if source else "") + (after or " at the start")
        case "sub_agent":
            role = f" ({one_line(info.role)})" if info.role else ""
            turn = f"turn {info.lineage.turn[:_TURN]}" if info.lineage.turn else ""
            if source is None:
                return f"sub-agent{role}" + (f" of {turn}" if turn else "") + after
            path = f" {one_line(info.path)}" if info.path else ""
            return f"sub-agent{path}{role} of {source}" + (f", {turn}" if turn else "") + after
        case _ as never:
            assert_never(never)


def folder_of(info: Info) -> str:
    """Where a conversation works, and whether it shares that folder, in words."""
    how = info.isolation
    if how is None or how.kind == "path":
        return info.workspace or "no folder"
    words = {"share": ["shared with what it branched off"], "worktree": [], "copy": []}[how.kind]
    if how.branch is not None:
        words.append(f"a worktree of {how.source} on the branch {how.branch}")
    elif how.source is not None:
        words.append(f"a copy of {how.source}")
    return f"{info.workspace}, {', '.join(words)}"


def own_events(info: Info) -> int:
    """How many events a conversation has after the point where it branched off. All of a side's events are its own."""
    if info.lineage.kind == "side":
        return info.events
    return max(info.events - (info.lineage.at.ordinal if info.lineage.at is not None else 0), 0)


def _label(info: Info, name: str, here: bool, stats: Stats | None) -> Text:
    """A conversation on two lines: its name, and its figures."""
    if info.lineage.kind == "root":
        told = [figures.counted(info.events, "event")]
    else:
        told = [origin(info), figures.counted(own_events(info), "own event")]
    if stats is not None:
        told.append(figures.tokens(stats.total))
    told.append(info.status.replace("_", " "))
    label = Text()
    marks = "◆◇" if info.lineage.kind == "sub_agent" else "●○"
    label.append(f"{marks[0 if here else 1]} ", style="green" if here else "dim")
    label.append(one_line(name), style="bold green" if here else "bold")
    if info.title:
        label.append(f"  {one_line(info.title, 60)}")
    label.append("\n  " + " · ".join(told), style="dim")
    return label


def _changed(source: Conversation, who: Answerer, store: str | None) -> Agent:
    """The agent with another model or other instructions."""
    agent = source.agent
    if agent is None and is_remote(store):
        if who.instructions is None:
            why = "the server does not show the source's instructions: give --instructions too, or name an --agent"
            raise typer.BadParameter(why, param_hint=who.model.hint)
        model = source.info().model
        return who.made(otherwise=None if model is None else LLM(model))
    here = ModelsHere(None if source.workspace is None else str(source.workspace), store)
    if agent is None:
        return who.made(here)
    changes: dict[str, Any] = {"llm": who.model.llm(here, agent.llm)} if who.model else {}
    return agent.replace(**changes | ({} if who.instructions is None else {"instructions": who.instructions}))


def turns_back(conversation: Conversation, number: int) -> str:
    """The id of the first turn to remove when a conversation goes back by ``number`` turns."""
    committed = newest_turns(conversation, number, committed=True)
    if len(committed) < number:
        raise NoSuchTurn(conversation.id, "go back to", f"it has {figures.counted(len(committed), 'committed turn')}")
    return committed[0].id
