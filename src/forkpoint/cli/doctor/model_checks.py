"""What ``forkpoint doctor`` says of models: the default one, those that the settings name, and the one asked about.
Tests: tests/cli/test_doctor.py."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal, TypeAlias, assert_never

from msgspec import Struct

from forkpoint.cli.answerer.answerer import described
from forkpoint.cli.doctor.reach import address_of, reached
from forkpoint.errors import ExtraBroken, ForkpointError
from forkpoint.llm.local.weights import check_ready
from forkpoint.llm.model import LLM
from forkpoint.llm.scripts import script_named
from forkpoint.workspace.defaults import named_model
from forkpoint.workspace.models.names import as_model, default_llm, projects_models, users_models

State: TypeAlias = Literal["good", "absent", "bad"]


class Check(Struct, frozen=True):
    """What was found about one thing. "absent" is no problem: nothing asked for it."""

    what: str
    state: State
    said: str


def default_model() -> tuple[State, str]:
    """Whether the model can be asked that answers where nobody names one."""
    name, source = named_model()
    llm = default_llm()
    try:
        check_usable(llm)
    except ForkpointError as error:
        return "bad", f"{name} ({source}): {error.message('Command line')}"
    return "good", f"{name} ({source})" if llm.model == name else f"{name} ({source}), which is {described(llm)}"


def named_models() -> Iterator[Check]:
    """Each model of the user's settings, and of the project that the program was started in if that is trusted."""
    try:
        found = projects_models(".") | users_models()
    except ForkpointError as error:
        yield Check("models", "bad", error.message("Command line"))
        return
    for name, one in sorted(found.items()):
        if isinstance(one, LLM):
            try:
                check_usable(one)
            except ForkpointError as error:
                yield Check(f"model {name}", "bad", error.message("Command line"))
            else:
                yield Check(f"model {name}", "good", described(one))
        else:
            yield Check(f"model {name}", "bad", one.message("Command line"))


def asked_model(name: str) -> tuple[State, str]:
    """Whether a model can be asked, and its address be reached."""
    llm = as_model(name, ".")
    check_usable(llm)
    if llm.kind in {"local", "scripted"}:
        return "good", f"{name} runs in this process"
    return "good", f"{name}: {reached(llm.base_url or address_of(llm.kind))}"


def check_usable(llm: LLM) -> None:
    """Raises an error if a model cannot be used: its key, its weights, or the package that asks it are missing."""
    llm.key()
    match llm.wire:
        case "local":
            check_ready(llm.name)
        case "scripted":
            script_named(llm.name)
        case "chat" | "responses" | "messages":
            package = "anthropic" if llm.wire == "messages" else "openai"
            if not _is_installed(package):
                raise ExtraBroken.package_missing(llm.model, package)
        case _ as never:
            assert_never(never)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False
