"""The prompt in a request: what a model reads, block by block, whichever wire it came on.

A cache compares prompts from their start, so two prompts share as much of it as their first blocks are equal.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

BYTES_IN_A_TOKEN = 4

_MARKS = ("cache_control", "prompt_cache_breakpoint")  # how blocks are marked; not a part of what the model reads
_SHORT = "5m"  # how long a mark asks to be kept that does not say it

# Fields whose change makes every prefix another one, and those whose change does so from the first message on.
_VOIDS_ALL = (
    "model",
    "response_format",
    "text",
    "reasoning",
    "reasoning_effort",
    "verbosity",
    "output_config",
    "speed",
)
_VOIDS_MESSAGES = ("tool_choice", "thinking")


class Prompt(Struct, frozen=True):
    """The prompt in a request, in the order in which a model reads it: tools, instructions, messages.

    ``blocks`` are canonical JSON: marks removed, but keys in the order in which they were sent, since another order is
    another prompt. ``head`` and ``turn`` stand for settings that void what comes after them, ``turn`` from block
    ``first_message`` on.
    """

    blocks: tuple[bytes, ...] = ()
    marks: tuple[int, ...] = ()  # which blocks carry a mark
    ttls: tuple[str, ...] = ()  # how long each mark asks to be kept
    head: bytes = b""
    turn: bytes = b""
    first_message: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(tokens_of, self.blocks))


def tokens_of(block: bytes) -> int:
    """How many tokens a block has, estimated."""
    return -(-len(block) // BYTES_IN_A_TOKEN)


def prompt_of(body: Any, wire: str | None) -> Prompt:
    """The prompt in the JSON of a request on any wire. It is empty if the JSON is no object."""
    if not isinstance(body, dict) or wire is None:
        return Prompt()
    before = [*_list(body.get("tools")), *_instructions(body, wire)]
    turns = [block for message in _messages(body) for block in _blocks_of(message, wire)]
    blocks: list[bytes] = []
    marks: dict[int, str] = {}
    for place, block in enumerate(before + turns):
        found: list[str] = []
        blocks.append(msgspec.json.encode(_unmarked(block, found)))
        if found:
            marks[place] = found[-1]
    if wire == "messages" and blocks and (mark := body.get("cache_control")) is not None:
        marks[len(blocks) - 1] = _ttl(mark)  # at the top level it marks the last block
    return Prompt(
        blocks=tuple(blocks),
        marks=tuple(marks),
        ttls=tuple(marks.values()),
        head=_fields(body, _VOIDS_ALL),
        turn=_fields(body, _VOIDS_MESSAGES) if wire == "messages" else b"",
        first_message=len(before),
    )


def _instructions(body: dict[str, Any], wire: str) -> list[Any]:
    given = body.get("system" if wire == "messages" else "instructions")
    if isinstance(given, str):
        return [{"type": "text", "text": given}] if given else []
    return _list(given)


def _messages(body: dict[str, Any]) -> list[Any]:
    given = body.get("messages") if "messages" in body else body.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else _list(given)


def _blocks_of(message: Any, wire: str) -> list[Any]:
    """A message as one block, or as one for each part of its content."""
    if not isinstance(message, dict):
        return [message]
    content = message.get("content")
    if wire == "messages" and isinstance(content, str):
        content = [{"type": "text", "text": content}]  # the same to the model
    if not isinstance(content, list) or not content:
        return [message]
    role = {"role": message.get("role")}
    rest = {name: value for name, value in message.items() if name != "content"}
    return [*({**role, "content": part} for part in content[:-1]), {**rest, "content": content[-1]}]


def _unmarked(block: Any, found: list[str]) -> Any:
    """The block without marks, which are added to ``found`` as the times that they ask for."""
    if isinstance(block, list):
        return [_unmarked(part, found) for part in block]
    if not isinstance(block, dict):
        return block
    found += [_ttl(block[name]) for name in _MARKS if block.get(name) is not None]
    return {
        name: _unmarked(value, found) if name == "content" else value
        for name, value in block.items()
        if name not in _MARKS
    }


def _ttl(mark: Any) -> str:
    ttl = mark.get("ttl") if isinstance(mark, dict) else None
    return ttl if isinstance(ttl, str) else _SHORT


def _fields(body: dict[str, Any], names: Sequence[str]) -> bytes:
    return msgspec.json.encode({name: body[name] for name in names if body.get(name) is not None})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
