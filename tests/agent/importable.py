"""Functions and types that a stored agent names by their import paths. All annotations here are texts."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic

from forkpoint.agent import Tool, ToolContext, tool
from forkpoint.events import ToolCall


@dataclasses.dataclass
class Person:
    name: str
    age: int = 0


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    force: bool
    depth: int


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(pydantic.BaseModel):
    street: str
    number: int = 1


class Household(pydantic.BaseModel):
    address: Address
    others: list[Address] = []


def plain(a: int, b: str = "z") -> str:
    """Adds them up."""
    return f"{a}{b}"


@tool
def decorated(a: int) -> int:
    """Gives it back."""
    return a


@tool(name="delete-all", risky=True, timeout=7, output_limit=99, repeatable=True)
def with_settings(a: int) -> int:
    """Is dangerous."""
    return a


async def with_context(ctx: ToolContext, person: Person, tree: Tree) -> str:
    """Knows its call."""
    return f"{ctx.call_id} {person.name} {tree.value}"


class Desk:
    """Has functions within, which have paths all the same."""

    def __init__(self, word: str = "desk") -> None:
        self.word = word

    @staticmethod
    def lamp(on: bool) -> str:
        return f"{on}"

    @classmethod
    def kind(cls, upper: bool = False) -> str:
        return cls.__name__

    def drawer(self, number: int) -> str:
        return f"{self.word} {number}"

    def asks(self, call: ToolCall, tool: Tool) -> bool:
        return self.word == "desk"


def asks(call: ToolCall, tool: Tool) -> bool | str:
    """A policy."""
    return "it says so" if tool.name == "plain" else False


NOTHING: Any = None
WORD: Any = "never"
NUMBER: Any = 4711
