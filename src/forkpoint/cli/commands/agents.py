"""``forkpoint agents``: the sub-agents of a conversation."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from forkpoint.agent.agent import Agent
from forkpoint.backend.results import Member
from forkpoint.cli.cells import brief
from forkpoint.cli.commands.branches.budget import OwnBudget, budget_from
from forkpoint.cli.common import Id, Store, Tags, Tools, imported_agent, opened, tags_from
from forkpoint.cli.options import argument, option
from forkpoint.cli.outcome import Telling, document
from forkpoint.cli.output import WAITING, Json, aside, clean, display, grid, one_line, print_json, standing, summary
from forkpoint.conversation.call_view import turn_view
from forkpoint.conversation.sub_agents import part_of_key
from forkpoint.history.roster import find
from forkpoint.wire.documents import info_document, member_document

Name = Annotated[str, argument("AGENT", "A sub-agent's nickname, path or id.")]
Key = Annotated[str | None, option("--key TEXT", "Do it once: the same key returns the same result again.")]

Quiet = Annotated[bool, option("--quiet -q", "Print the answer alone.")]


def list_agents(conversation: Id, store: Store = None, json: Json = False) -> None:
    """Show the sub-agents of a conversation, and how they stand.

    They come in the order in which they were made. Those of a fork are those of the history that it shares.

    \b
    Example:
      forkpoint agents build-1234
    """
    with opened(conversation, store) as this:
        members = this.list_agents()
    if json:
        print_json({"conversation": this.id, "items": _documents(members)})
    elif members:
        display(_table(members))
    else:
        aside("No sub-agents.")


def spawn(
    conversation: Id,
    task: Annotated[str, argument("TASK", "What it is to do.")],
    role: Annotated[str | None, option("--role NAME", "One of the roles that the conversation's agent has.")] = None,
    agent: Annotated[
        str | None,
        option(
            "--agent NAME",
            "One of the agents that the conversation's agent offers, or MODULE:NAME: an Agent in your own code.",
        ),
    ] = None,
    model: Annotated[
        str | None, option("--model NAME", "One of the models that the conversation's agent offers.")
    ] = None,
    nickname: Annotated[str | None, option("--nickname NAME", "What to call it by.")] = None,
    title: Annotated[str | None, option("--title TEXT", "What it is about.")] = None,
    tag: Tags = None,
    budget: OwnBudget = None,
    key: Key = None,
    no_run: Annotated[bool, option("--no-run", "Make it, and do not begin its task.")] = False,
    quiet: Quiet = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Make a sub-agent, and run its task.

    It has the conversation's agent, or another that this one offers, and never more rights. Its answer is on stdout,
    all the rest on stderr. What it said and did stands in a conversation of its own.

    \b
    Examples:
      forkpoint agents spawn build-1234 "Read the log, and say why it failed." --nickname reader
      forkpoint agents spawn build-1234 "Review the fix." --role reviewer --no-run

    \b
    Exit status: 0 its turn has committed; 1 it has failed; 3 it waits for an approval; 130 Ctrl-C.
    """
    telling = Telling(store=store, as_json=json, quiet=quiet)
    with opened(conversation, store, bind=True) as this:
        child = this.spawn_agent(
            task,
            role=role,
            agent=_given(agent),
            model=model,
            nickname=nickname,
            title=title,
            tags=tags_from(tag),
            budget=budget_from(budget),
            callbacks=_callbacks(telling),
            key=key,
        )
        with child:
            if not no_run:
                telling.run(child, lambda: child.run(key=part_of_key(key, "task")))
                return
            info = child.info()
    if json:
        print_json(info_document(info))
    else:
        print(f"{info.id}  {info.path}")


def send(
    conversation: Id,
    agent: Name,
    message: Annotated[str, argument("MESSAGE", "What to tell it.")],
    key: Key = None,
    tools: Tools = None,
    quiet: Quiet = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Run a turn of a sub-agent.

    A sub-agent that belongs to another branch of the conversation is forked first.

    \b
    Example:
      forkpoint agents send build-1234 reader "And the build before?"
    """
    telling = Telling(store=store, as_json=json, quiet=quiet)
    with (
        opened(conversation, store, bind=True, agent=tools) as this,
        this._reached(agent, _callbacks(telling), key=key) as child,
    ):
        telling.run(child, lambda: child.run(message, key=key))


def wait(
    conversation: Id,
    agent: Name,
    timeout: Annotated[
        float | None, option("--timeout S", "Seconds to wait at most. Default: no limit.", min=0)
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Wait until nothing runs in a sub-agent, and show its newest turn.

    \b
    Example:
      forkpoint agents wait build-1234 reader --timeout 60

    \b
    Exit status: 0 it has committed; 1 it has not, or it still runs; 3 it waits for an approval.
    """
    with opened(conversation, store) as this:
        turn = this.wait_agent(agent, timeout=timeout)
        member = find(this.list_agents(), agent, this.name)
    if turn is None:
        told = "still runs" if member.status == "running" else "has run nothing yet"
        aside(f"{one_line(member.path)} {told}.")
        raise typer.Exit(1)
    if json:
        print_json(document(turn, member.nickname))
    else:
        if turn.waiting:
            display(turn_view(turn, digests=True))
        elif turn.text:
            print(clean(turn.text), flush=True)
        aside(f"{one_line(member.path)} · {summary(turn)}")
    if turn.outcome != "committed":
        raise typer.Exit(WAITING if turn.outcome == "awaiting_approval" else 1)


def close(conversation: Id, agent: Name, store: Store = None, json: Json = False) -> None:
    """Close a sub-agent that is not needed any more.

    What runs there is cancelled. It can still be read and forked.

    \b
    Example:
      forkpoint agents close build-1234 reader
    """
    with opened(conversation, store) as this:
        member = this.close_agent(agent)
    if json:
        print_json(_documents([member])[0])
    else:
        print(f"Closed {member.path}.")


def _given(agent: str | None) -> Agent | str | None:
    """The sub-agent's agent: an object in the user's code, or the name of an offered agent."""
    return imported_agent(agent) if agent is not None and ":" in agent else agent


def _callbacks(telling: Telling) -> list[Any]:
    options = telling.options
    return [*options["callbacks"], *([] if options["visualizer"] is None else [options["visualizer"]])]


def _documents(members: Sequence[Member]) -> list[Any]:
    return [member_document(member) for member in members]


def _table(members: Sequence[Member]) -> Table:
    table = grid(header=True)
    for name in ("agent", "role", "status", "task", "said", "conversation"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for member in members:
        table.add_row(
            Text(one_line(member.path), style="bold"),
            brief(member.role or "-", 30),
            standing(member.status),
            brief(member.task, 40),
            brief(member.answer or member.error or "", 60),
            Text(member.conversation),
        )
    return table
