"""Steers: messages for a turn that is open already, as they are kept with the turn.

A turn's row has them all in one text, in the order in which they came. Whoever runs the turn takes what is there before
it asks its model: the message becomes a step of the turn, and goes from the text into that step. So each word stands in
one place. **The commit compares the text with the one that its writer knows**: a message that came between is seen, and
a turn to which nobody has sent one pays nothing.
Tests: tests/history/test_steers.py.
"""

from collections.abc import Collection

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.events import Envelope, JsonText, UserMessage


class Steer(Struct, frozen=True, omit_defaults=True):
    """A message that somebody sent to a turn that was open. ``time`` is when, in microseconds since 1970.

    In the store a message that was ``delivered`` is None: the turn has it among its steps or events.
    """

    id: str
    time: int
    message: UserMessage | None = None
    by: str | None = None  # who sent it, if somebody said so
    delivered: bool = False  # whether the turn's model was given it, or is next
    key: str | None = None  # the idempotency key that it was sent with


_decode = msgspec.json.Decoder(tuple[Steer, ...]).decode


def read_steers(text: JsonText | None) -> tuple[Steer, ...]:
    """All messages that were sent to a turn, in order. None: nobody has sent one."""
    return () if text is None else _decode(text)


def write_steers(steers: Collection[Steer]) -> JsonText:
    """The text that a turn's row has."""
    return msgspec.json.encode(tuple(steers)).decode()


def with_delivered(text: JsonText | None, delivered: Collection[str]) -> JsonText | None:
    """The text once these messages, by their ids, stand among the turn's steps."""
    if text is None or not delivered:
        return text
    return write_steers(
        [replace(one, message=None, delivered=True) if one.id in delivered else one for one in read_steers(text)]
    )


def steers_among(envelopes: Collection[Envelope]) -> frozenset[str]:
    """The ids of the steers that events with these envelopes deliver. A copy in another turn delivers nothing."""
    return frozenset(one.steer for one in envelopes if one.steer is not None and one.origin is None)
