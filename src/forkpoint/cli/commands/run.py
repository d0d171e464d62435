"""``forkpoint run``: one turn, in a new conversation or in one that exists."""

import sys
from typing import Annotated, Any

import typer

from forkpoint.backend.allowance import allows_models
from forkpoint.backend.settings import as_workspace
from forkpoint.cli.common import (
    BUILT_IN,
    AgentPath,
    Allow,
    Approval,
    Instructions,
    Model,
    Store,
    agent_from,
    allowed,
    answerer_from,
    is_built_in,
    opened,
)
from forkpoint.cli.options import argument, option
from forkpoint.cli.outcome import Telling
from forkpoint.cli.output import Json, one_line
from forkpoint.cli.trust_question import TrustGiven, model_of, place_of
from forkpoint.conversation import Conversation
from forkpoint.conversation.look import is_remote
from forkpoint.errors import NotFound

Workspace = Annotated[str | None, option("--workspace FOLDER", "The folder that tools of a new one work in.")]


def run(
    message: Annotated[
        str | None, argument("MESSAGE", "What to say. - reads it from stdin; so does a pipe, without a message.")
    ] = None,
    conversation: Annotated[
        str | None,
        option(
            "--conversation -c NAME",
            "Say it in this one: its name, its id, or the start of its id. One that does not exist is made.",
        ),
    ] = None,
    model: Model = None,
    instructions: Instructions = None,
    agent: AgentPath = None,
    approval: Approval = None,
    workspace: Workspace = None,
    trust: TrustGiven = None,
    allow: Allow = None,
    key: Annotated[
        str | None, option("--key TEXT", "Do it once: the same key and message give the same turn again.")
    ] = None,
    quiet: Annotated[bool, option("--quiet -q", "Print the answer alone.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Run one turn: say something, and get an answer that is committed.

    The answer is on stdout, all the rest on stderr. On a terminal it is shown as it comes; a file or a pipe gets it
    once it is committed, whole. A turn that fails or is cancelled leaves the conversation as it was.

    Without --conversation it begins a new one. One that exists has its agent: --agent gives it tools that cannot be
    imported here, and --model another model if you --allow model.

    --agent coder works in the folder that you are in, or in --workspace, and asks before it runs a command or writes a
    file. Where nobody can be asked, say --approval never.

    \b
    Examples:
      forkpoint run "What is the capital of France?"
      forkpoint run -c build-1234 "And why did it fail?"
      git diff | forkpoint run --instructions "You review changes." --quiet
      forkpoint run --agent coder --model openai/gpt-5.6 "Why does test_login fail?"
      forkpoint run --agent myproject.agents:reviewer --workspace . "Have a look." --json

    \b
    Exit status: 0 it has committed; 1 it has failed; 3 it waits for an approval; 130 Ctrl-C.
    """
    if allow and conversation is None:
        why = "a new conversation misses nothing; name one with --conversation"
        raise typer.BadParameter(why, param_hint="--allow")
    said = _message(message)
    workspace = here_for(agent, workspace, conversation, store)
    store = place_of(workspace, store, trust)
    telling = Telling(store=store, as_json=json, quiet=quiet)
    options: dict[str, Any] = {"store": store, "model": model, "instructions": instructions, "agent": agent}
    options |= {"workspace": workspace, "trust": trust, "allow": allow, "approval": approval, **telling.options}
    with (existing(conversation, **options) if conversation else None) or new(conversation, **options) as this:
        telling.run(this, lambda: this.run(said, key=key))


def existing(
    given: str,
    *,
    store: str | None,
    model: str | None,
    instructions: str | None,
    agent: str | None,
    workspace: str | None,
    allow: list[str] | None = None,
    approval: str | None = None,
    **options: Any,
) -> Conversation | None:
    """The conversation that is meant, ready to run; None if there is none.

    An option that would have no effect on it is refused.
    """
    try:
        other = model if agent is None and _is_other(given, store, model, allow) else None
        found = opened(given, store, bind=True, agent=agent, model=other, allow=allow, **options)
    except NotFound:
        return None
    try:
        _check_approval(found, approval)
        model = None if other is not None else model  # it has it from its next turn on
        if is_remote(store):
            _check_options_there(found, model, instructions, agent, workspace)
        else:
            _check_options(found, model, instructions, agent, workspace)
    except BaseException:
        found.close()
        raise
    return found


def new(
    given: str | None,
    *,
    store: str | None,
    model: str | None,
    instructions: str | None,
    agent: str | None,
    workspace: str | None,
    trust: bool | None = None,
    allow: list[str] | None = None,
    approval: str | None = None,
    **options: Any,
) -> Conversation:
    """A new conversation, with this name if one is given. It comes into being with its first turn."""
    workspace = here_for(agent, workspace, None, store)
    if model is None and (agent is None or is_built_in(agent, store)):
        model = model_of(workspace, store, trust)
    who = answerer_from(agent, model, instructions, store)
    if approval is not None and isinstance(who, str):
        raise typer.BadParameter(f"the agent {who} is the server's, and has its own", param_hint="--approval")
    if approval is not None and not isinstance(who, str):
        who = who.but(approval=approval)
    return Conversation(who, conversation_id=given, workspace=workspace, trust=trust, store=store, **options)


def here_for(agent: str | None, workspace: str | None, conversation: str | None, store: str | None) -> str | None:
    """The workspace of a new conversation: that of an agent of ours is the folder that the program was started in."""
    return "." if workspace is None and conversation is None and is_built_in(agent, store) else workspace


def _check_approval(found: Conversation, approval: str | None) -> None:
    if approval is not None and (found.agent is None or found.agent.approval != approval):
        why = f"conversation {one_line(found.name)} has its agent's already; only a new one takes another"
        raise typer.BadParameter(why, param_hint="--approval")


def _is_other(given: str, store: str | None, model: str | None, allow: list[str] | None) -> bool:
    """Whether a conversation is to go on with another model, and may."""
    if model is None or not allow or not allows_models(allowed(allow)):
        return False
    with opened(given, store) as found:
        return found.info().model not in {None, model}


def _message(given: str | None) -> str:
    """What is to be said: as it was given, or from stdin."""
    if given == "-" or (given is None and not sys.stdin.isatty()):
        given = sys.stdin.buffer.read().decode(errors="surrogateescape").rstrip("\r\n")
    if not given or given.isspace():
        raise typer.BadParameter("there is nothing to say: give a message, or - to read it from stdin")
    return given


def _check_options_there(
    found: Conversation, model: str | None, instructions: str | None, agent: str | None, workspace: str | None
) -> None:
    """The same for a conversation at a server, of whose agent no more is known than its name and its model."""
    info = found.info()
    has = {"--agent": info.agent, "--model": info.model, "--instructions": None, "--workspace": info.workspace}
    given = {"--agent": agent, "--model": model, "--instructions": instructions, "--workspace": workspace}
    for name, value in given.items():
        if value is not None and value != has[name]:
            why = f"conversation {one_line(found.name)} is answered by {info.agent or info.model} of the server already"
            raise typer.BadParameter(why, param_hint=name)


def _check_options(
    found: Conversation, model: str | None, instructions: str | None, agent: str | None, workspace: str | None
) -> None:
    if found.agent is None:  # nobody answers there yet
        found.change_agent(agent_from(agent, model, instructions))
        return
    if agent is not None and (model is not None or instructions is not None):
        agent_from(agent, model, instructions)  # says what is wrong with that
    name = one_line(found.name)
    if agent in BUILT_IN and found.agent.name != agent:
        raise typer.BadParameter(f"conversation {name} is answered by another agent already", param_hint="--agent")
    if model is not None and model != found.agent.llm.model:
        why = f"conversation {name} is answered by {found.agent.llm.model} already"
        raise typer.BadParameter(why, param_hint="--model")
    with_project = "\n\n".join(filter(None, (instructions, found.project_instructions)))
    if instructions is not None and found.agent.instructions not in (instructions, with_project):
        raise typer.BadParameter(f"conversation {name} has others already", param_hint="--instructions")
    if workspace is not None and as_workspace(workspace) != (str(found.workspace) if found.workspace else None):
        why = f"conversation {name} works in {found.workspace or 'no folder'} already"
        raise typer.BadParameter(why, param_hint="--workspace")
