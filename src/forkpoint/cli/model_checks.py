"""What ``forkpoint doctor`` says of models: the default one, those that the settings name, and the one asked about.
Tests: tests/cli/test_doctor.py."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from forkpoint.cli.answerer import described
from forkpoint.cli.reach import address_of, reached
from forkpoint.errors import ExtraMissing, ForkpointError, NoWeights
from forkpoint.llm.local.llama import load as load_llama
from forkpoint.llm.local.weights import find
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
    try:
        llm = default_llm()
        check_usable(llm)
    except (ExtraMissing, NoWeights) as error:
        if source != "default":
            raise
        return "absent", f"{name} ({source}): {error}"  # nothing asked for this model: it is the default
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
    """Raises an error if a model cannot be used: its key or its weights are missing."""
    llm.key()
    if llm.kind == "local":
        load_llama(llm.model)
        find(llm.name)
    elif llm.kind == "scripted":
        script_named(llm.name)
