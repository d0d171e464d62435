"""Secrets are not to be read where errors and logs are: what looks like one is masked.
Tests: tests/server/test_logs.py, tests/llm/test_keys.py."""

import logging
import re
from collections.abc import Callable
from contextlib import suppress


def masked(text: str) -> str:
    """The same without what looks like a key or the value of an Authorization header."""
    lower = text.lower()
    for signs, pattern, instead in _SECRETS:
        if any(sign in lower for sign in signs):  # hardly any line has one, and this is much faster
            text = pattern.sub(instead, text)
    return text


class HiddenInLogs(logging.Filter):
    """Hides what ``hide`` knows in all that a logger says. It is for the loggers of packages that have seen a secret.

    An exception is logged as the text of its traceback, and not as the object: that holds frames, and they hold
    requests.
    """

    def __init__(self, hide: Callable[[str], str]) -> None:
        super().__init__()
        self._hide = hide

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(Exception):  # what cannot be put together is said by whoever writes it down
            said = record.getMessage()
            if (hidden := self._hide(said)) != said:
                record.msg, record.args = hidden, None
        if record.exc_info:
            record.exc_text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        if record.exc_text:  # also if another filter of this kind has made it, which hides another secret
            record.exc_text = self._hide(record.exc_text)
        return True


# A header or a setting by its name, however it is written: `name: value`, {'name': 'value'}, (b'name', b'value').
_IS = r"""(['"]?\s*[:=,]\s*(?:b?['"])?)"""
_HEADER = rf"""((?:proxy-)?authorization|(?:set-)?cookie){_IS}[^'"\r\n]+"""  # all of it: it may have several parts
_SETTING = rf"""((?:x-)?api[_-]key){_IS}[^\s'",;)}}\]]+"""
_SIGNS = (
    "fp_",
    "sk-",
    "sk_",
    "xai-",
    "hf_",
    "aiza",
    "ghp_",
    "gho_",
    "ghr_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xox",
    "npm_",
    "ya29.",
)
_PREFIX = r"fp_|sk-|sk_(?:live|test)_|gsk_|xai-|hf_|AIza|gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|npm_|ya29\."
_SECRETS = [
    (signs, re.compile(pattern, re.IGNORECASE), instead)
    for signs, pattern, instead in (
        (("authorization", "cookie"), _HEADER, r"\1\2***"),
        (("api-key", "api_key"), _SETTING, r"\1\2***"),
        (("bearer",), r"\b(bearer)\s+[a-z0-9._~+/=-]{8,}", r"\1 ***"),
        (_SIGNS, rf"\b({_PREFIX})[a-z0-9_-]{{8,}}", r"\1***"),
        (("akia", "asia"), r"\b((?-i:AKIA|ASIA))(?-i:[0-9A-Z]{16})\b", r"\1***"),  # a key of Amazon
        (
            ("private key-----",),
            r"(-----BEGIN [a-z ]{0,30}PRIVATE KEY-----)(?:[^-]|-(?!----END))*",  # to its end, or to the end of the text
            r"\1***",
        ),
        (("eyj",), r"\beyJ[a-z0-9_-]{8,}\.eyJ[a-z0-9_-]{8,}\.[a-z0-9_-]*", "***"),  # a JSON web token
        (("://",), r"(://[^\s/:@]*:)[^\s/@]+@", r"\1***@"),  # the password in an address
    )
]
