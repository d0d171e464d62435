"""The models that a shell offers after ``--model``. Tests: tests/cli/test_completion.py."""

import os
from collections.abc import Iterator
from contextlib import suppress

from forkpoint.errors import ForkpointError

_PROVIDERS = ("openai", "anthropic")


def known_models(word: str) -> Iterator[tuple[str, str]]:
    """The model in the box, the one that is set, and those that settings name.

    After ``openai/`` or ``anthropic/`` also the models of this provider that have a price.
    """
    yield "local/smollm2", "the model in the box"
    if (named := os.environ.get("FORKPOINT_MODEL")) and named != "local/smollm2":
        yield named, "FORKPOINT_MODEL"
    yield from _named()
    for provider in _PROVIDERS:
        if word.startswith(f"{provider}/"):
            yield from _priced(provider)
        else:
            yield f"{provider}/", "a model of this provider"


def _named() -> Iterator[tuple[str, str]]:
    """The models that your settings and the trusted project here name, unless the files are broken."""
    from forkpoint.workspace.models.names import projects_models, users_models

    for whose, models in (("your settings", users_models), ("the project", lambda: projects_models("."))):
        with suppress(ForkpointError):
            yield from ((name, f"a model of {whose}") for name in models())


def _priced(provider: str) -> Iterator[tuple[str, str]]:
    from genai_prices.data import providers  # it takes a while, so only for who has typed the provider's name

    for one in next(found for found in providers if found.id == provider).models:
        yield f"{provider}/{one.id}", one.name or ""
