"""``forkpoint run``: one turn, in a new or an existing conversation."""

from typing import Annotated

import typer

from forkpoint.cli.answerer.answerer import Answerer, Api, ApiKeyEnv, BaseUrl, ModelOptions
from forkpoint.cli.answerer.bundled import INTRODUCTION, is_bundled
from forkpoint.cli.common import AgentPath, Allow, Approval, Instructions, Last, Model, Store, last_used, only_one
from forkpoint.cli.input.attachments import Files, Images, attached
from forkpoint.cli.input.schema import schema_from
from forkpoint.cli.input.stdin import NOTHING, message_from
from forkpoint.cli.input.template import Parameters, TemplateName, filled, template_from
from forkpoint.cli.options import argument, option
from forkpoint.cli.outcome import AnswerForm, Telling
from forkpoint.cli.output import Json, aside
from forkpoint.cli.questions.allowed_tools import AllowedTools
from forkpoint.cli.questions.project import TrustGiven, Workspace, place_of
from forkpoint.cli.talk import Talk, here_for
from forkpoint.cli.titles import TitleModel, Titles


def run(
    message: Annotated[
        str | None,
        argument("MESSAGE", "What to say. The text of a pipe follows it, after a blank line. - reads all from stdin."),
    ] = None,
    conversation: Annotated[
        str | None,
        option(
            "--conversation -c NAME",
            "Say it in this conversation: its name, its id, or the start of its id. A new name makes a new one.",
        ),
    ] = None,
    last: Last = False,
    template: TemplateName = None,
    param: Parameters = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api: Api = None,
    api_key_env: ApiKeyEnv = None,
    instructions: Instructions = None,
    agent: AgentPath = None,
    approval: Approval = None,
    workspace: Workspace = None,
    trust: TrustGiven = None,
    allow: Allow = None,
    allow_tool: Annotated[
        list[str] | None,
        option(
            "--allow-tool NAME[=WORDS]",
            "Approve calls of this tool in this run; of a shell, commands that begin with WORDS. Repeatable.",
        ),
    ] = None,
    image: Images = None,
    file: Files = None,
    schema: Annotated[
        str | None,
        option("--schema FILE", "Print an answer of this form: a JSON schema in a file, or the schema itself."),
    ] = None,
    extract: Annotated[bool, option("--extract -x", "Print only the first code block of the answer.")] = False,
    stream_json: Annotated[
        bool, option("--stream-json", "Print what happens as it happens: one JSON document a line.")
    ] = False,
    title_model: TitleModel = None,
    key: Annotated[
        str | None, option("--key TEXT", "Do it once: the same key and message return the same turn again.")
    ] = None,
    quiet: Annotated[bool, option("--quiet -q", "Print the answer alone.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Run one turn: say something, and get an answer that is committed.

    The answer is on stdout, all the rest on stderr. On a terminal it is shown as it comes; a file or a pipe gets it
    once it is committed, whole. A turn that fails or is cancelled leaves the conversation as it was.

    Without --conversation or --last it begins a new one. An existing conversation keeps its agent: --agent gives it
    tools that cannot be imported here, and --model another model if you --allow model.

    --agent coder works in the folder that you are in, or in --workspace, and asks before it runs a command or writes a
    file. Where nobody can be asked, --allow-tool approves calls of some tools, or --approval never asks about none.

    \b
    Examples:
      forkpoint run "What is the capital of France?"
      forkpoint run -c build-1234 "And why did it fail?"
      forkpoint run --last "And in one sentence?"
      git diff | forkpoint run "Review this." --quiet
      git diff | forkpoint run --template review -p language=German
      forkpoint run "A script that counts lines of code, in bash." --extract > count.sh
      forkpoint run "What is on it?" --image photo.png --schema '{"type": "array", "items": {"type": "string"}}'
      forkpoint run --agent coder --model openai/gpt-5.6 "Why does test_login fail?" --allow-tool "shell=pytest"
      forkpoint run --agent myproject.agents:reviewer --workspace . "Have a look." --json

    \b
    Exit status: 0 it has committed; 1 it has failed; 3 it waits for an approval; 130 Ctrl-C.
    """
    only_one({"--json": json, "--stream-json": stream_json, "--extract": extract})
    only_one({"--schema": schema, "--extract": extract})
    only_one({"--conversation": conversation, "--last": last})
    allowed = AllowedTools(allow_tool)
    if last:
        conversation = last_used(store)
    if allow and conversation is None:
        why = "a new conversation misses nothing; name one with --conversation"
        raise typer.BadParameter(why, param_hint="--allow")
    parts = attached(image, file)
    used = None if template is None else template_from(template, workspace, store, trust)
    said = message_from(message, needed=not parts and used is None)
    if used is not None:
        said = filled(used, said, param)
        if agent is None:
            agent, model, instructions = used.agent, model or used.model, instructions or used.instructions
        schema, extract = schema or (None if extract else used.schema), extract or (used.extract and schema is None)
    elif param:
        raise typer.BadParameter("it is for a template; name one with --template", param_hint="--param")
    if said is None and not parts:
        raise typer.BadParameter(NOTHING)
    output = None if schema is None else schema_from(schema)
    workspace = here_for(agent, workspace, conversation, store)
    store = place_of(workspace, store, trust)
    form: AnswerForm = "json_lines" if stream_json else "code" if extract else "output" if schema else "text"
    telling = Telling(store=store, as_json=json, quiet=quiet, form=form)
    who = Answerer(ModelOptions(model, base_url, api, api_key_env), instructions, agent)
    talk = Talk(conversation, who, approval, workspace, trust, allow, store, output)
    found = talk.existing(**telling.options)
    with found or talk.new(**telling.options) as this:
        telling.run(
            this,
            lambda: allowed.carry_on(this, this.run([*([said] if said else []), *parts] if parts else said, key=key)),
        )
        if found is None and is_bundled(this.agent) and form == "text" and not quiet and not json:
            aside(INTRODUCTION)
        Titles(title_model, store).give(this)
