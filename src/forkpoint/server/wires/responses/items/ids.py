"""Ids of responses, conversations and items. Each is made of an id of the store, so that no table is needed.

A response is a turn: `resp_` and the turn's id. An item belongs to a turn or a note, and its id says which one and
where in it. It is known before the turn commits, and never changes.
Tests: tests/server/responses/test_input.py.
"""

import hashlib
import re

from forkpoint.errors import NotFound

_RESPONSE = re.compile(r"resp_([0-9a-f]{32})")
_CONVERSATION = re.compile(r"conv_([0-9a-f]{32})")
_ITEM = re.compile(r"(?:msg|rs|fc|fco|ctc|ctco)_([0-9a-f]{32})_[0-9a-z_]{1,24}")


def response_id(turn: str) -> str:
    """The id of the response that a turn is."""
    return f"resp_{_plain(turn)}"


def turn_of_response(id: str) -> str:
    """The turn that a response is. Raises `NotFound` if this is no id of a response."""
    if (found := _RESPONSE.fullmatch(id)) is None:
        raise NotFound("response", id[:200])
    return _dashed(found[1])


def conversation_id(id: str) -> str:
    """The id under which this API shows a conversation."""
    return f"conv_{_plain(id)}"


def conversation_named(id: str) -> str:
    """The id or the name of the conversation that a client means by this."""
    found = _CONVERSATION.fullmatch(id)
    return _dashed(found[1]) if found is not None else id


def turn_of_item(id: str) -> str | None:
    """The turn or note that an item belongs to; None if this is not an id of this server."""
    found = _ITEM.fullmatch(id)
    return None if found is None else _dashed(found[1])


def message_id(turn: str, response: int) -> str:
    """The message in one of a turn's model responses: there is at most one."""
    return f"msg_{_plain(turn)}_r{response}"


def refusal_id(turn: str) -> str:
    """The message in which a model refused to answer a turn."""
    return f"msg_{_plain(turn)}_refusal"


def reasoning_id(turn: str, response: int, number: int) -> str:
    """A thought in one of a turn's model responses."""
    return f"rs_{_plain(turn)}_r{response}_{number}"


def call_item_id(turn: str, response: int, call_id: str, *, custom: bool = False) -> str:
    """A call in one of a turn's model responses."""
    return f"{'ctc' if custom else 'fc'}_{_plain(turn)}_r{response}_{_short(call_id)}"


def result_item_id(turn: str, call_id: str) -> str:
    """The result of a call that ran in a turn."""
    return f"fco_{_plain(turn)}_{_short(call_id)}"


def input_item_id(turn: str, prefix: str, number: int) -> str:
    """What a turn was given, or a note has, by its place there."""
    return f"{prefix}_{_plain(turn)}_i{number}"


def _short(call_id: str) -> str:
    return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:12]


def _plain(id: str) -> str:
    return id.replace("-", "")


def _dashed(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
