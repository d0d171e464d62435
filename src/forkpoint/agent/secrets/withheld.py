"""Variables of our environment that are not given to what a model runs, and are masked in what comes back.

A variable is withheld if its name says that it is a credential, or its value does: a key of a known form, an address
with a password in it, a private key. A name is read word by word (`SENTRY_DSN`, `slackWebhook`), and so are short words
that people write together (`DBPW`, `PGPASSWORD`). A variable is withheld, too, if an agent of this process has it as a
secret or as its model's key: the commands of all other agents, of its sub-agents first, would have it otherwise.

A variable that is meant for commands although it looks so is named in ``FORKPOINT_SHELL_ENV`` (names with commas
between), or given as a `Secret` with ``shell=True``.
Tests: tests/agent/test_withheld.py.
"""

import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote, urlsplit

from forkpoint.agent.name_words import name_words
from forkpoint.agent.secrets.masking import Masking
from forkpoint.masking import masked

LET_THROUGH = "FORKPOINT_SHELL_ENV"
"""The variable that names what is given to commands although it looks like a secret."""

TELLING = 8
"""A withheld value with fewer characters is not masked: it stands in many words."""

_WORDS = frozenset(
    {
        *("auth", "bearer", "client", "cookie", "cookies", "cred", "creds", "credential"),
        *("credentials", "dsn", "jwt", "key", "keys", "oauth", "otp", "pass"),
        *("pat", "pem", "private", "pw", "pwd", "sas", "secret", "secrets"),
        *("token", "tokens", "webhook", "webhooks"),
    }
)
_PAIRS = frozenset({("connection", "string"), ("conn", "string"), ("conn", "str"), ("connection", "str")})
_WITHIN = re.compile(r"passw(?:or)?d|passphrase|secret|credential|apikey|accesskey|privatekey|webhook|conn\w*str")
_ENDS = ("auth", "creds", "dsn", "pass", "pw", "pwd", "token", "tokens")  # of a word that was written together
_ORDINARY = frozenset({"askpass", "bypass", "compass"})
_NAMES = frozenset({"PWD", "OLDPWD", "SSH_CLIENT", "GIT_ASKPASS", "SSH_ASKPASS"})
_ESSENTIAL = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "PWD", "OLDPWD"})
_VALUE = re.compile(
    r"://[^\s/:@]{16,}@"  # a token in the place of a user
    r"|(?i:\b(?:pwd|password|accountkey|sharedaccesskey|sig|client_secret)=[^;&\s]{4,})"
)
_PATH = re.compile(r"(?:~|\.{1,2})?/[\w.@ +-]*(?:/[\w.@ +-]*)*")
_GIT_KEY = "GIT_CONFIG_KEY_"  # what such a variable holds is the name of a setting of git
_of_agents: set[str] = set()  # of the process and not of a turn: the turns of all its agents share one environment


def withhold(names: Iterable[str]) -> None:
    """Withholds these variables from now on, whatever they look like. An agent that is made says so of its own.

    A name stays withheld when its agent is gone, since nobody can tell when its last turn has ended. Variables that no
    command can do without are given as before.
    """
    _of_agents.update(set(names) - _ESSENTIAL)


def withheld() -> dict[str, str]:
    """The variables that commands are not given, with their values."""
    return {name: value for name, value in os.environ.items() if is_withheld(name, value)}


def let_through() -> frozenset[str]:
    """The names that `FORKPOINT_SHELL_ENV` has."""
    return frozenset(name.strip() for name in os.environ.get(LET_THROUGH, "").split(","))


def is_withheld(name: str, value: str) -> bool:
    """Whether a variable of our environment is kept from commands."""
    return (name in _of_agents or looks_secret(name, value)) and name not in let_through()


def masking_of_withheld(further: frozenset[str] = frozenset()) -> Masking:
    """A masking of the withheld values and the ``further`` ones, without those that look like ordinary words."""
    values = {part for value in withheld().values() for part in _parts(value)}
    return _masking(frozenset(value for value in values | further if is_telling(value)))


def without_known(given: Mapping[str, str], masking: Masking) -> dict[str, str]:
    """The given variables, without those whose value holds a secret of the agent or the model's key."""
    free = let_through() | _ESSENTIAL
    return {name: value for name, value in given.items() if name in free or not masking.spans(value)}


@functools.lru_cache(maxsize=4096)
def looks_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a credential, by its name or by its value."""
    if name in _NAMES:
        return False
    named = _is_named_so(name) and not name.startswith(_GIT_KEY)
    return named or masked(value) != value or _VALUE.search(value) is not None


def is_telling(value: str) -> bool:
    """Whether a withheld value is masked in results. Words, numbers, switches and paths are not: they stand
    everywhere."""
    text = value.strip()
    if len(text) < TELLING or len(set(text)) < 5 or _PATH.fullmatch(text):
        return False
    if "://" in text and "@" not in text:  # an address tells something only if there is a long, odd part in it
        text = max(re.split(r"[^\w-]+", text.partition("://")[2].partition("/")[2]), key=len)
        return len(text) >= 16 and is_telling(text)
    kinds = sum(map(bool, (re.search("[a-z]", text), re.search("[A-Z]", text), re.search("[0-9]", text))))
    return kinds > 1 or (len(text) >= 16 and kinds == 1 and bool(re.search(r"[^\w\s.:,-]", text)))


def _is_named_so(name: str) -> bool:
    words = name_words(name)
    if any(word in _WORDS or _WITHIN.search(word) for word in words) or _WITHIN.search(name.lower()):
        return True
    if any(pair in _PAIRS for pair in itertools.pairwise(words)):
        return True
    return any(word.endswith(_ENDS) and word not in _ORDINARY for word in words)


def _parts(value: str) -> Iterator[str]:
    """A value, and what is a secret of its own in it: the password or the token of an address."""
    yield value
    try:
        address = urlsplit(value) if "://" in value else None
        found = (address.password, address.username) if address is not None else ()
    except ValueError:
        found = ()
    for part in found:
        if part:
            yield from (part, unquote(part))


@functools.lru_cache(maxsize=16)
def _masking(values: frozenset[str]) -> Masking:
    return Masking(sorted(values))
