"""Types that are made of others: how they stand in a document, and that they come back as they were."""

import json
import sys
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest
from tests.agent.importable import Address, Colour, Options, Person, Point

from forkpoint.agent import Agent
from forkpoint.agent.stored.document import bind
from forkpoint.agent.stored.type_forms import TypeForm, form_of_type, type_of_form
from forkpoint.errors import CannotResume

ECHO = "scripted/echo"
T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    item: T


Score = Annotated[int, msgspec.Meta(ge=1, le=5)]
"""A type that only its name here can bring back."""

FORMED = [
    int,
    list[int],
    int | None,
    int | str | None,
    Literal["yes", "no", 3],
    list[Person],
    list[Address],
    dict[str, list[Colour]],
    tuple[int, ...],
    tuple[int, str],
    Colour,
    Point,
    Options,
    Box[Person],
    list[Literal["a"]] | Person,
]


@pytest.mark.parametrize("kind", FORMED, ids=str)
def test_a_type_comes_back_from_its_stored_agent(kind: Any) -> None:
    again = bind(Agent(ECHO, output=kind).to_json())
    assert again.output == kind
    assert again.manifest == Agent(ECHO, output=kind).manifest


@pytest.mark.parametrize("kind", FORMED, ids=str)
def test_a_form_is_json_and_back(kind: Any) -> None:
    form = form_of_type(kind)
    assert form is not None
    assert type_of_form(msgspec.json.decode(msgspec.json.encode(form), type=TypeForm)) == kind


def test_a_type_that_has_a_name_in_a_module_comes_back_by_it() -> None:
    document = Agent(ECHO, output=Score).to_json()
    assert json.loads(document)["output"]["path"] == f"{__name__}:Score"
    assert bind(document).output == Score


def test_a_type_with_a_part_that_is_nowhere_to_be_imported_is_missing_and_comes_from_the_agent_given() -> None:
    class Local(msgspec.Struct):
        a: int

    agent = Agent(ECHO, output=list[Local])
    with pytest.raises(CannotResume, match="no import path"):
        bind(agent.to_json())
    assert bind(agent.to_json(), agent).output == list[Local]


def test_a_part_that_is_gone_or_has_changed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    document = Agent(ECHO, output=list[Person]).to_json()
    importable = sys.modules[Person.__module__]
    monkeypatch.setattr(importable, "Person", Point)
    with pytest.raises(CannotResume, match="its fields have changed"):
        bind(document)
    monkeypatch.delattr(importable, "Person")
    with pytest.raises(CannotResume, match="cannot be imported"):
        bind(document)
