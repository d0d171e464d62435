"""``forkpoint request``: what a turn sends, byte for byte, and why a provider's cache did or did not have it."""

import sys
from typing import Annotated

from msgspec import to_builtins
from rich.text import Text

from forkpoint.cli import figures
from forkpoint.cli.commands.show import names_of, whose
from forkpoint.cli.common import Allow, Id, Store, Tools, only_one, opened
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, clean, console, display, facts, print_json
from forkpoint.conversation import Info
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.llm.prompt.inspection import Inspection


def request(
    conversation: Id,
    message: Annotated[
        str | None, argument("MESSAGE", "Show what this would send. Default: what was sent last.")
    ] = None,
    turn: Annotated[str | None, option("--turn ID", "Show what this turn sent last.")] = None,
    body: Annotated[bool, option("--body", "Print the exact body instead.")] = False,
    diff: Annotated[bool, option("--diff", "Print the blocks that differ from the request before.")] = False,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show what was sent to the model, or would be.

    It is shown beside the request before it: how much of the prompt both share, and what ended that. Its tokens are
    shown too, estimated for a request that was not sent, and what they cost with a warm cache and with a cold one.
    Nothing is sent.

    \b
    Examples:
      forkpoint request build-1234
      forkpoint request build-1234 "And what fixes it?" --diff
      forkpoint request build-1234 --body | jq .
    """
    only_one({"MESSAGE": message, "--turn": turn})
    only_one({"--body": body, "--diff": diff, "--json": json})
    without = [*(allow or ()), "workspace"]  # nothing runs, so it is not needed
    with opened(conversation, store, bind=True, agent=agent, allow=without) as this:
        seen, info = this.request(message, turn=turn), this.info()
    if json:
        print_json(to_builtins(seen) | {"key_inherited_from": info.cache.inherited_from})
    elif body:
        _print_body(seen.body)
    elif diff:
        _print_diff(seen)
    else:
        display(facts(_facts(seen, info, names_of(info, store))))


def _facts(seen: Inspection, info: Info, names: dict[str, str]) -> list[tuple[str, str]]:
    blocks = f"{figures.counted(seen.blocks, 'block')}, {figures.size(seen.bytes)}"
    shared = f"{seen.shared:,} of {figures.counted(seen.blocks, 'block')}, {figures.size(seen.shared_bytes)}"
    part = f" ({figures.percent(seen.shared_bytes / seen.bytes)})" if seen.bytes else ""
    rows: list[tuple[str, str]] = [
        ("cache key", f"{seen.key}, {_key_of(seen.key, info, names)}" if seen.key else "none is sent"),
        *(("header", f"{name}: {value}") for name, value in seen.headers),
        ("prompt", blocks),
        ("tokens", f"{'about ' if seen.tokens_estimated else ''}{seen.tokens:,}, {seen.tokens_how}"),
        ("price", _price(seen)),
        ("body", figures.size(len(seen.body.encode()))),
        ("shared", f"{shared}{part} with the request before"),
        ("why", seen.why),
        ("cached", f"{figures.percent(seen.cached)} of its tokens" if seen.cached is not None else "not known"),
        ("manifest", seen.manifest),
        ("prefix", seen.prefix),
    ]
    return rows


def _price(seen: Inspection) -> str:
    """What the prompt costs without its answer, in words."""
    if seen.price_warm is None or seen.price_cold is None:
        return "not known"
    warm, cold = figures.money(seen.price_warm), figures.money(seen.price_cold)
    return f"{warm} with a warm cache, {cold} with a cold one, without the answer"


def _key_of(key: str, info: Info, names: dict[str, str]) -> str:
    """Who owns the cache key of a request, in words."""
    if key == info.cache.key:
        return whose(info.cache, names)
    if key == own_identity(info.id).key:
        return "its own, for the prompt begins otherwise than the one whose key it inherited"
    return "of the conversation that it was forked from, which sent this"


def _print_body(body: str) -> None:
    """Prints the body byte for byte. On a screen: with a line end, and without characters that control the terminal."""
    if sys.stdout.isatty():
        print(clean(body))
    else:
        sys.stdout.buffer.write(body.encode())


def _print_diff(seen: Inspection) -> None:
    out = console()
    for line in seen.diff().split("\n"):
        style = {"+": "green", "-": "red"}.get(line[:1], "dim")
        out.print(Text(clean(line), style=style), soft_wrap=True)
