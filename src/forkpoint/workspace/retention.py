"""How long a store keeps drafts, keys, failed tries and responses, as the environment says.
Tests: tests/workspace/test_retention.py."""

import os
import re

from msgspec.structs import asdict

from forkpoint.errors import BadArgument
from forkpoint.store import Retention

VARIABLES = {name: f"FORKPOINT_KEEP_{name.upper()}" for name in ("drafts", "keys", "tries", "responses")}
"""The environment variable of each kind."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TIME = re.compile(r"([0-9]{1,9}(?:[.][0-9]{1,6})?)([smhd])")
_MOST = 100 * 365 * 86_400.0


def retention(otherwise: Retention = Retention()) -> Retention:
    """What the environment says, such as ``FORKPOINT_KEEP_TRIES=90d``; ``otherwise`` is for all that it does not say.

    Raises `BadArgument` for what is not a time.
    """
    texts = {name: os.environ.get(variable, "").strip() for name, variable in VARIABLES.items()}
    said = {name: _seconds(VARIABLES[name], text) for name, text in texts.items() if text}
    return Retention(**asdict(otherwise) | said)


def _seconds(variable: str, text: str) -> float:
    found = _TIME.fullmatch(text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else _MOST + 1
    if seconds > _MOST:
        raise BadArgument(variable, repr(text[:200]), "it is not a time of at most 100 years, such as 30d, 12h or 900s")
    return seconds
