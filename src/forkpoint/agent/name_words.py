"""The words of a name, however it is written: as snake_case, with dashes, or in camelCase.
Tests: tests/agent/test_standing_approval.py, tests/agent/test_withheld.py."""

import re

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])|[A-Z0-9]+")


def name_words(name: str) -> list[str]:
    """The words in small letters: ``runSQL``, ``run_sql`` and ``run-sql`` are run and sql."""
    return [word.lower() for word in _WORD.findall(name)]
