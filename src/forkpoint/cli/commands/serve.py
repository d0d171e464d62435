"""``forkpoint serve``: conversations over HTTP."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forkpoint import extras
from forkpoint.cli import completions
from forkpoint.cli.commands.local import bring_library
from forkpoint.cli.common import Instructions, Store, only_one
from forkpoint.cli.output import Json, tell

if TYPE_CHECKING:
    from forkpoint.server.agents.catalog import Catalog
    from forkpoint.server.http.keys import Keyring


def serve(
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Where to listen. Beyond loopback it needs keys.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="0 takes a free one, and says which.")
    ] = 8008,
    store: Store = None,
    agents: Annotated[
        str | None, typer.Option("--agents", metavar="FILE", help="A TOML or JSON file with the agents to offer.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="One agent that is this model. Default: FORKPOINT_MODEL."),
    ] = None,
    api: Annotated[
        Literal["chat", "responses", "messages"] | None,
        typer.Option("--api", metavar="WIRE", help="How the model is spoken to: chat, responses or messages."),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="A compatible server that has the model.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the model's key.")
    ] = None,
    instructions: Instructions = None,
    allow_model: Annotated[
        list[str] | None,
        typer.Option("--allow-model", metavar="PATTERN", help="Models that clients may choose too: openai/*."),
    ] = None,
    workspace_root: Annotated[
        list[str] | None,
        typer.Option("--workspace-root", metavar="FOLDER", help="A folder in which clients may choose a workspace."),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="FOLDER", help="A folder whose project is trusted, and remembered as such."),
    ] = None,
    allow_trust: Annotated[
        bool, typer.Option("--allow-trust", help="Let clients say whether a workspace's project is trusted.")
    ] = False,
    allow_isolation: Annotated[
        bool, typer.Option("--allow-isolation", help="Let clients' forks have a worktree or a copy of their workspace.")
    ] = False,
    keys: Annotated[
        str | None, typer.Option("--keys", metavar="FILE", help="The file of `forkpoint keys`: callers need one.")
    ] = None,
    key_env: Annotated[
        str | None, typer.Option("--key-env", metavar="NAME", help="The variable that holds a key for callers.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option("--cors-origin", metavar="ORIGIN", help="A web page that may call: https://app.example."),
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", metavar="BYTES", min=1024, help="Of a request.")] = 32
    * 1024
    * 1024,
    max_turns: Annotated[int, typer.Option("--max-turns", metavar="N", min=1, help="Turns that run at once.")] = 1000,
    max_turns_per_tenant: Annotated[
        int | None,
        typer.Option(
            "--max-turns-per-tenant",
            metavar="N",
            min=1,
            help="The same for each tenant; a quarter of them if there are keys.",
        ),
    ] = None,
    max_streams: Annotated[
        int, typer.Option("--max-streams", metavar="N", min=1, help="Event streams that are open at once.")
    ] = 20_000,
    max_streams_per_tenant: Annotated[
        int | None,
        typer.Option(
            "--max-streams-per-tenant",
            metavar="N",
            min=1,
            help="The same for each tenant; a quarter of them if there are keys.",
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="S", min=0, help="Seconds that running turns have when it is told to stop."),
    ] = 30.0,
    request_timeout: Annotated[
        float | None,
        typer.Option("--request-timeout", metavar="S", min=0.001, help="Seconds after which a turn has failed."),
    ] = None,
    conversation_header: completions.ConversationHeaders = None,
    conversations_max: completions.ConversationsMax = 10_000,
    conversation_ttl: completions.ConversationTtl = 1800.0,
    on_disconnect: completions.OnDisconnect = "cancel",
    system: completions.System = "first",
    strict: completions.Strict = False,
    reasoning: completions.Reasoning = "reasoning_content",
    metrics: Annotated[
        Literal["loopback", "public", "off"],
        typer.Option("--metrics", metavar="WHO", help="Who may read /metrics: loopback, public or off."),
    ] = "loopback",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
    ] = "info",
    log_format: Annotated[
        Literal["json", "text"] | None,
        typer.Option("--log-format", metavar="FORMAT", help="json or text. Default: text on a terminal."),
    ] = None,
    json: Json = False,
) -> None:
    """Serve conversations over HTTP.

    The API is described at /openapi.json. Python programs and this one use a server by its address: --store
    http://127.0.0.1:8008, with FORKPOINT_API_KEY if it has keys. Clients of OpenAI's chat completions use it with the
    base URL http://127.0.0.1:8008/v1, and name a conversation with a header.

    Ctrl-C or SIGTERM lets running turns finish, and cancels them after --grace; a second one cancels them at once.

    \b
    Examples:
      forkpoint serve
      forkpoint serve --model openai/gpt-5.6 --store sqlite:///forkpoint.db
      forkpoint serve --agents agents.toml --keys keys.json --host 0.0.0.0
      forkpoint serve --conversation-header X-OpenWebUI-Chat-Id=full
    """
    flags = {"--model": model, "--api": api, "--base-url": base_url, "--api-key-env": api_key_env}
    for name, value in (flags | {"--instructions": instructions}).items():
        only_one({"--agents": agents, name: value})
    from forkpoint.conversation.place import as_url
    from forkpoint.remote.addresses import is_server
    from forkpoint.server.http.address import check_safe

    address = as_url(store)
    if is_server(address):
        why = f"{address} is another server; say where this one is to keep conversations: sqlite:///forkpoint.db"
        raise typer.BadParameter(why, param_hint="--store / FORKPOINT_STORE")
    allowed: dict[str, Any] = {"allow_models": allow_model or (), "roots": workspace_root or ()}
    allowed["allow_isolation"] = allow_isolation
    offered = _agents_of_file(agents, allowed) if agents is not None else _one_agent(flags, instructions, allowed)
    for folder in trust or ():
        if not os.path.isdir(folder):
            raise typer.BadParameter(f"{folder} is not a folder", param_hint="--trust")
    keyring = _keyring(keys, key_env)
    check_safe(host, has_keys=keyring is not None)
    if "*" in (cors_origin or ()) and keyring is None:
        why = "without keys every web page that you visit could use this server; name the origins, or use --keys"
        raise typer.BadParameter(why, param_hint="--cors-origin")
    headers = completions.conversation_headers(conversation_header)
    extras.load("server", "A server")  # it takes a while: what is wrong with the command line was said before
    from forkpoint.server import lifecycle
    from forkpoint.server.http import logs
    from forkpoint.server.settings import ServerSettings

    bring_library(agent.model for agent in offered.items())
    settings = ServerSettings(
        max_body=max_body,
        max_turns=max_turns,
        max_turns_per_tenant=max_turns_per_tenant,
        max_streams=max_streams,
        max_streams_per_tenant=max_streams_per_tenant,
        grace=grace,
        cors_origins=tuple(cors_origin or ()),
        hosts=(host,),
        metrics=metrics,
        request_timeout=request_timeout,
        allow_trust=allow_trust,
        trust=tuple(os.path.abspath(folder) for folder in trust or ()),
        conversation_headers=headers,
        conversations_max=conversations_max,
        conversation_ttl=conversation_ttl,
        on_disconnect=on_disconnect,
        system=system,
        strict=strict,
        reasoning=reasoning,
    )
    logs.configure(log_level, log_format or ("text" if sys.stderr.isatty() else "json"))

    def told(url: str) -> None:
        if json:
            print(f'{{"url": "{url}"}}', flush=True)  # on one line, for whoever waits for it
        else:
            tell(f"Forkpoint serves at {url}. Ctrl-C stops it.")

    lifecycle.run(address, offered, keyring, settings, host=host, port=port, told=told)


def _agents_of_file(path: str, allowed: dict[str, Any]) -> "Catalog":
    from forkpoint.server.agents.catalog import Catalog

    return Catalog.from_file(path, **allowed)


def _one_agent(flags: dict[str, Any], instructions: str | None, allowed: dict[str, Any]) -> "Catalog":
    from forkpoint.server.agents.catalog import Catalog
    from forkpoint.workspace.defaults import default_model

    return Catalog.of_model(
        flags["--model"] or default_model(),
        api=flags["--api"],
        base_url=flags["--base-url"],
        api_key_env=flags["--api-key-env"],
        instructions=instructions or "",
        **allowed,
    )


def _keyring(file: str | None, variable: str | None) -> "Keyring | None":
    """Who may call. None if nothing is said: then it is whoever reaches it."""
    from forkpoint.server.http.keys import Keyring, Keys, OneKey

    sources: list[Any] = [] if file is None else [Keys(file)]
    if variable is not None:
        sources.append(OneKey.from_environment(variable))
    return Keyring(sources) if sources else None
