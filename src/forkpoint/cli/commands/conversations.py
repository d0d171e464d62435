"""``forkpoint list``, ``usage``, ``describe``, ``rename`` and ``delete``: conversations of a store and their cost."""

import shlex
import sys
from typing import Annotated, Literal

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from forkpoint.cli import figures
from forkpoint.cli.cells import Cell, ago, brief, number
from forkpoint.cli.commands.branches.tree import walk
from forkpoint.cli.common import Id, Store, Tags, listed, only_one, opened, short_names, tags_from
from forkpoint.cli.options import option
from forkpoint.cli.output import Json, aside, console, display, facts, grid, has_screen, one_line, print_json, standing
from forkpoint.cli.titles import write_title
from forkpoint.conversation import Conversations, Info, Spending
from forkpoint.conversation.look import is_there
from forkpoint.events import Usage
from forkpoint.wire.documents import info_document, spending_document

_KINDS = {"root": "root", "fork": "fork", "aside": "set aside", "side": "side", "sub_agent": "sub-agent"}
_TITLE = 20  # columns of the screen that a title gets before others do


def list_conversations(
    tag: Annotated[list[str] | None, option("--tag KEY=VALUE", "Only conversations with this tag. Repeatable.")] = None,
    status: Annotated[
        Literal["idle", "running", "awaiting_approval", "interrupted"] | None,
        option("--status STATUS", "Only conversations that are idle, running, awaiting_approval or interrupted."),
    ] = None,
    order: Annotated[
        Literal["used", "created"], option("--order ORDER", "used: the last used first; created: the newest first.")
    ] = "used",
    agents: Annotated[bool, option("--agents", "Show sub-agents too.")] = False,
    sides: Annotated[bool, option("--sides", "Show sides too: what clients asked beside conversations.")] = False,
    every: Annotated[
        bool, option("--all -a", "Show everything: sub-agents, sides, and branches that were set aside.")
    ] = False,
    limit: Annotated[int, option("--limit N", "How many at most.", min=1, max=1000)] = 50,
    cursor: Annotated[str | None, option("--cursor CURSOR", "Go on where an earlier list ended.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show the conversations of a store.

    The last used come first. A conversation without a title is shown by its first words. Branches that were set aside,
    and sides, are folded: the row of their conversation counts them. A conversation whose first turn has not committed
    is listed too, for a day.

    \b
    Examples:
      forkpoint list
      forkpoint list --tag kind=debug --status idle
      forkpoint list --all --json
    """
    page = listed(
        store,
        tags=tags_from(tag),
        status=status,
        order=order,
        limit=limit,
        cursor=cursor,
        sub_agents=agents or every,
        sides=sides or every,
        asides=every,
        drafts=True,
        glance=True,
    )
    if json:
        print_json({"items": [info_document(info) for info in page.items], "next": page.next})
        return
    if page.items:
        display(_table(list(page.items)))
    else:
        aside("No conversations." if cursor or every else _nothing(store))
    if page.next is not None:
        narrowed: list[tuple[str, str | None]] = [("--status", status), *(("--tag", one) for one in tag or ())]
        asked = [] if order == "used" else ["--order", str(order)]
        asked += [name for name, given in {"--agents": agents, "--sides": sides, "--all": every}.items() if given]
        asked += [part for name, value in [*narrowed, ("--store", store)] if value for part in (name, value)]
        aside(f"More: {shlex.join(['forkpoint', 'list', *asked, '--cursor', page.next])}")


def usage(store: Store = None, json: Json = False) -> None:
    """Show what was spent in all.

    Each token is counted once, however many forks share it, and those of deleted conversations too. What chat
    completions without a conversation have spent stands apart as well. A server says what your key's tenant has spent.

    \b
    Example:
      forkpoint usage --json
    """
    spent = _spent(store)
    if json:
        print_json(spending_document(spent.total, spent.beside))
    else:
        rows = [("in all", figures.used(spent.total)), ("of it beside conversations", figures.used(spent.beside))]
        display(facts(rows))


def describe(
    conversation: Id,
    title: Annotated[str | None, option("--title TEXT", 'What it is about; "" removes it.')] = None,
    title_model: Annotated[
        str | None, option("--title-model NAME", "A model that writes the title: it is asked aside.")
    ] = None,
    tag: Tags = None,
    untag: Annotated[list[str] | None, option("--untag KEY", "A tag to remove. Repeatable.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Give a conversation a title or tags.

    Tags that you do not name stay. A turn that runs is not disturbed.

    \b
    Examples:
      forkpoint describe build-1234 --title "The disk was full" --tag kind=debug
      forkpoint describe build-1234 --title-model local/smollm2
    """
    only_one({"--title": title, "--title-model": title_model})
    if title is None and title_model is None and not tag and not untag:
        raise typer.BadParameter("give at least one of them", param_hint="--title / --title-model / --tag / --untag")
    with opened(conversation, store) as this:
        tags = None
        if tag or untag:
            others = {key: value for key, value in this.tags().items() if key != "title"}
            tags = {key: value for key, value in (others | tags_from(tag)).items() if key not in (untag or ())}
        written = None if title_model is None else write_title(this.id, title_model, store)
        info = this.describe(title=written or title, tags=tags)
    if json:
        print_json(info_document(info))
    else:
        display(_table([info]))


def rename(
    conversation: Id,
    name: Annotated[str, typer.Argument(metavar="NEW", help="The new name. Its own id takes the name away.")],
    store: Store = None,
    json: Json = False,
) -> None:
    """Give a conversation another name.

    Nothing else changes, and a turn that runs is not disturbed. A name that another conversation has is refused.

    \b
    Example:
      forkpoint rename second-try build-1234
    """
    with opened(conversation, store) as this:
        before = this.name
        info = this.rename(name)
    if json:
        print_json(info_document(info))
    else:
        print(f"{one_line(before)} is called {one_line(info.name)} now.")


def delete(
    conversation: Id,
    yes: Annotated[bool, option("--yes -y", "Do not ask.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Delete a conversation.

    Its forks stay, with the history that they share with it. What it has cost stays counted in the family. A folder
    that was made for it (fork --workspace) goes too, if nobody else works there and nothing is lost by that.

    \b
    Example:
      forkpoint delete build-1234 --yes
    """
    with opened(conversation, store) as this:
        info = this.info()
        forks = [one for one, _ in walk(this.tree()) if one.lineage.source == info.id]
        stay = f" Its {figures.counted(len(forks), 'branch', 'branches')} will stay." if forks else ""
        what = one_line(info.name) + (f" ({one_line(info.title, 60)})" if info.title else "")
        if not yes and not typer.confirm(f"Delete {what}, {figures.counted(info.events, 'event')}?{stay}", err=True):
            raise typer.Exit(1)
        folder = this.delete()
    if json:
        left_over = {} if folder is None else {"workspace": folder}
        print_json({"deleted": info.id, "branches_left": [one.id for one in forks], **left_over})
    else:
        left = f" {figures.counted(len(forks), 'branch stays', 'branches stay')}." if forks else ""
        print(f"Deleted {info.id}.{left}")
        if folder is not None:
            became = "was removed" if folder.removed else f"stays: {one_line(folder.why or '')}"
            print(f"Its folder {one_line(folder.path)} {became}.")


def _nothing(store: str | None) -> str:
    """What is said of an empty list: that all there is was left out, or how to begin."""
    if listed(store, limit=1, sub_agents=True, sides=True).items:
        return "No conversations but what is left out here: forkpoint list --all"
    return 'No conversations. Begin one: forkpoint run "..."'


def _title(info: Info) -> str:
    """What a conversation is about: its title, else its place in a team, else its first words."""
    return info.title or info.path or (info.glance.opening if info.glance is not None else "")


def _standing(info: Info) -> Text:
    return Text("not committed", style="red") if info.draft and info.status == "idle" else standing(info.status)


def _folded(info: Info) -> str:
    """What is folded under a conversation: ``2 aside, 1 side``."""
    if info.glance is None:
        return ""
    counts = {"aside": info.glance.asides, "side" if info.glance.sides == 1 else "sides": info.glance.sides}
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def _table(infos: list[Info]) -> Table:
    """Conversations, one on a line. On a narrow screen titles are cut, and some columns are left out."""
    names = short_names(infos)
    columns: dict[str, list[Text]] = {
        "conversation": [Cell(one_line(names[info.id]), info.name, "bold") for info in infos],
        "title": [brief(_title(info), 80) for info in infos],
        "folded": [Text(_folded(info), style="dim") for info in infos],
        "status": [_standing(info) for info in infos],
        "events": [number(info.events) for info in infos],
        "model": [Text(one_line(info.model or "-")) for info in infos],
        "updated": [ago(info.updated) for info in infos],
        "kind": [Text(_KINDS[info.lineage.kind]) for info in infos],
    }
    if has_screen(sys.stdout) and not any(map(_folded, infos)):  # in a pipe a column has always the same number
        del columns["folded"]
    wide = {name: max(cell_len(name), *(cell.cell_len for cell in cells)) + 2 for name, cells in columns.items()}
    room = console().width - sum(wide.values()) + wide["title"]
    for name in ("model", "kind", "folded", "events", "status"):
        if room < min(wide["title"], _TITLE) and name in columns:
            del columns[name]
            room += wide[name]
    table = grid(header=True)
    for name in columns:
        right: Literal["left", "right"] = "right" if name == "events" else "left"
        most = max(room - 2, 1) if name == "title" else None
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=right, max_width=most)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _spent(store: str | None) -> Spending:
    """What was spent. Nothing if the store does not exist; the store is not made."""
    if not is_there(store):
        return Spending(Usage(), Usage())
    with Conversations(store) as conversations:
        return conversations.usage()
