"""``forkpoint serve``: conversations over HTTP. Its flags are what people type; all other settings stand in a file."""

import os
import sys
from typing import Annotated, Any, Literal, TypeAlias

import typer
from msgspec.structs import replace
from typer.core import TyperCommand

from forkpoint.cli.answerer.answerer import Answerer, Api, ApiKeyEnv, BaseUrl, ModelOptions
from forkpoint.cli.commands.local import bring_library
from forkpoint.cli.common import Instructions
from forkpoint.cli.lazy_command import as_command
from forkpoint.cli.options import option
from forkpoint.cli.output import Json, tell
from forkpoint.conversation.look import is_remote
from forkpoint.conversation.place import as_url
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.agents.file import TOP, ServerFile, read_file, read_text
from forkpoint.server.config import FIELDS, ServerConfig, another_server
from forkpoint.server.http.address import check_safe
from forkpoint.server.http.keys import Keyring, Keys, OneKey
from forkpoint.server.settings import Orphans
from forkpoint.server.shelf import Shelf, read_shelf, shown
from forkpoint.system import extras

_Level: TypeAlias = Literal["debug", "info", "warning", "error"]
_STORE = (
    "Where this server keeps conversations: a file (talks.db), or memory: to forget them at the end. "
    "Default: FORKPOINT_STORE, else `store` of the file of --config, else a file in your data folder."
)


def serve(
    host: Annotated[
        str | None, option("--host HOST", "Where to listen. Default: 127.0.0.1. Beyond loopback it needs keys.")
    ] = None,
    port: Annotated[int | None, option("--port PORT", "Default: 8008. 0 takes a free one.", min=0, max=65535)] = None,
    store: Annotated[str | None, option("--store ADDRESS", _STORE)] = None,
    config: Annotated[
        str | None, option("--config FILE", "TOML or JSON: the agents to offer, and all other settings.")
    ] = None,
    model: Annotated[
        str | None, option("--model NAME", "Offer this model as the only agent. Default: FORKPOINT_MODEL.")
    ] = None,
    base_url: BaseUrl = None,
    api: Api = None,
    api_key_env: ApiKeyEnv = None,
    instructions: Instructions = None,
    keys: Annotated[str | None, option("--keys FILE", "The file of `forkpoint keys`. Callers need a key.")] = None,
    key_env: Annotated[str | None, option("--key-env NAME", "The variable with a key for callers.")] = None,
    anchor_log: Annotated[
        str | None, option("--anchor-log FILE", "Add a line to this file for each anchor of the store.")
    ] = None,
    anchor_command: Annotated[
        str | None, option("--anchor-command COMMAND", "Give each anchor of the store to this shell command, on stdin.")
    ] = None,
    anchor_interval: Annotated[
        float | None, option("--anchor-interval SECONDS", "How often, if anything is new. Default: 3600.", min=0.001)
    ] = None,
    lease: Annotated[
        float | None,
        option(
            "--lease SECONDS", "How long others leave this server's turns alone if it is silent. Default: 60.", min=1
        ),
    ] = None,
    resume_orphans: Annotated[
        Orphans | None,
        option(
            "--resume-orphans WHICH",
            "all, async or none: which turns of servers that are gone to go on with. Default: async (promised by 202).",
        ),
    ] = None,
    drain: Annotated[
        float | None,
        option("--drain SECONDS", "How long turns may go on after a signal to stop. Default: 30 (grace).", min=0),
    ] = None,
    log_level: Annotated[
        _Level | None, option("--log-level LEVEL", "debug, info, warning or error. Default: info.")
    ] = None,
    json: Json = False,
) -> None:
    """Serve conversations over HTTP.

    The API is described at /openapi.json. Python programs and this one use a server by its address: --store
    http://127.0.0.1:8008, with FORKPOINT_API_KEY if it has keys. Clients of OpenAI's chat completions use it with the
    base URL http://127.0.0.1:8008/v1, and name a conversation with a header.

    A store may have the keys of callers (`forkpoint keys --store`) and the file itself (`forkpoint config put`): then a
    server needs nothing but --store.

    Limits, timeouts, web origins, conversation headers and the rest stand under [server] in the file that --config
    names; docs/operations.md lists them. A flag wins over the file.

    Ctrl-C or SIGTERM drains: /ready says no, new turns are refused with Retry-After, and running turns have --drain
    seconds (grace in the file) to finish. Those that do not are left open, for another server on the store to go on
    with, or for you to resume. A second signal does not wait.

    An anchor shows later whether anybody rewrote the store: `forkpoint anchor --help`. With --anchor-log and
    --anchor-command there is one at the start, at each interval if anything is new, and at the end.

    \b
    Examples:
      forkpoint serve
      forkpoint serve --model openai/gpt-5.6 --store sqlite:///forkpoint.db
      forkpoint serve --config server.toml --keys keys.json --host 0.0.0.0
    """
    file = ServerFile() if config is None else read_file(config)
    settings = {"grace": drain, "lease": lease, "resume_orphans": resume_orphans, "anchor_log": anchor_log}
    settings |= {"anchor_command": anchor_command, "anchor_interval": anchor_interval}
    flags = {"host": host, "port": port, "keys": keys, "key_env": key_env, "log_level": log_level}
    start = _started_with(file, flags, settings)
    address = _address(store, start)
    shelf = read_shelf(address, tell)
    if config is None and shelf.config is not None:
        file = read_text(shelf.config, f"the file in the store at {shown(address)}")
        start = _started_with(file, flags, settings)
    offered = _agents(file, Answerer(ModelOptions(model, base_url, api, api_key_env), instructions))
    keyring = _keyring(start, shelf)
    check_safe(start.host, has_keys=keyring is not None)
    if "*" in start.settings.cors_origins and keyring is None:
        why = "without keys every web page that you visit could use this server; name the origins, or use --keys"
        file.check([f"server.cors_origins: {why}"])
    extras.load("server", "A server")  # it takes a while: what is wrong with the command line was said before
    from forkpoint.server import lifecycle
    from forkpoint.server.http import logs

    bring_library(agent.model for agent in offered.items())
    logs.configure(start.log_level, start.log_format or ("text" if sys.stderr.isatty() else "json"))

    def told(url: str) -> None:
        if json:
            print(f'{{"url": "{url}"}}', flush=True)  # on one line, for whoever waits for it
        else:
            tell(f"Forkpoint serves at {url}. Ctrl-C stops it.")

    lifecycle.run(address, offered, keyring, start.settings, host=start.host, port=start.port, told=told)


class ServeCommand(TyperCommand):
    """``forkpoint serve``, which says of a flag that it used to have where the setting stands now."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if (place := _setting_of(getattr(error, "option_name", ""))) is not None:
                vars(error).update(message=place, possibilities=None)  # it is a usage error, which ends with status 2
            raise


command = as_command("serve", serve, ServeCommand)


def _setting_of(flag: str) -> str | None:
    """Where the setting stands that this flag used to set. None if the flag never was one of a setting."""
    if flag == "--agents":
        return "--agents is called --config now: give the same file with --config FILE"
    name = "workspaces" if flag == "--workspace-root" else flag.removeprefix("--").replace("-", "_")
    setting = next((one for one in (name, f"{name}s") if one in FIELDS or one in TOP), None)
    if setting is None:
        return None
    where = "under [server] in" if setting in FIELDS else "at the top of"
    return f"{flag} is a setting now: write {setting} = ... {where} a file, and give that with --config FILE"


def _started_with(file: ServerFile, flags: dict[str, Any], settings: dict[str, Any]) -> ServerConfig:
    """What the file says, unless a flag says otherwise."""
    start = replace(file.server, **_given(flags))
    hosts = (start.host, *start.settings.hosts)
    return replace(start, settings=replace(start.settings, hosts=hosts, **_given(settings)))


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _address(flag: str | None, start: ServerConfig) -> str:
    """Where the server keeps conversations: the flag says, else the environment, else the file."""
    address = as_url(flag if flag is not None else os.environ.get("FORKPOINT_STORE", "").strip() or start.store)
    if is_remote(address):
        raise typer.BadParameter(another_server(address), param_hint="--store / FORKPOINT_STORE")
    return address


def _agents(file: ServerFile, who: Answerer) -> Catalog:
    """The agents of the file. If it names no agent, the only one is the model that the flags name."""
    if file.named and who.is_given:
        why = f"{file.path} has agents already; leave this out, or write it in an agent's table there"
        raise typer.BadParameter(why, param_hint=who.hint)
    if file.named:
        return Catalog.from_file(file)
    file.check()
    offer: dict[str, Any] = {"allow_models": file.allow_models, "roots": file.roots}
    return Catalog.of_model(
        who.model.llm(), instructions=who.instructions or "", allow_isolation=file.allow_isolation, **offer
    )


def _keyring(start: ServerConfig, shelf: Shelf) -> Keyring | None:
    """The keys that callers need. None if there are no keys: then whoever reaches the server may call."""
    sources: list[Any] = [] if start.keys is None else [Keys(start.keys)]
    if start.key_env is not None:
        sources.append(OneKey.from_environment(start.key_env))
    if shelf.keys is not None:
        sources.append(shelf.keys)
    return Keyring(sources) if sources else None
