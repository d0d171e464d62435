"""What every error of Forkpoint has: a code, fields, and a message for each surface. Tests: tests/test_errors.py."""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias, cast, dataclass_transform

from forkpoint.errors.form import Form

Surface: TypeAlias = Literal["Python", "Command line", "HTTP", "Chat", "Terminal chat"]
"""Where a message is read: in a program, at a command line, by a client of the native API, or of chat completions,
or in ``forkpoint chat``, where what helps at a command line helps too if nothing else is said."""

_LIKE: "dict[Surface | None, Surface | None]" = {"Terminal chat": "Command line"}
_SURFACE = re.compile(r"(Python|Command line|HTTP|Chat|Terminal chat): ")


@dataclass_transform(eq_default=False)
class ForkpointError(Exception):
    """Something went wrong in Forkpoint."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls, *, code: str = "") -> None:
        cls.code = code or cls.code
        dataclasses.dataclass(eq=False, repr=False)(cls)
        KINDS.setdefault(cls.code, cls)
        KINDS.update((form.code, form) for form in vars(cls).values() if isinstance(form, Form))

    def __str__(self) -> str:
        return self.message("Python")

    def message(self, surface: Surface | None = None) -> str:
        """The fact, and what can be done about it on a surface; without one, what anybody can do."""
        template = _kind(type(self), self.code).__doc__
        if template is None:  # python -OO drops docstrings; what happened must still be said
            return f"{self.code}: {vars(self)}"
        fact, advice = _paragraphs(template)
        said = advice.get(surface) or advice.get(_LIKE.get(surface)) or advice.get(None, "")
        return self._filled(f"{fact} {said}".rstrip(), surface)

    def fact(self, surface: Surface | None = None) -> str:
        """What happened, without what can be done about it."""
        template = _kind(type(self), self.code).__doc__
        return self.message(surface) if template is None else self._filled(_paragraphs(template)[0], surface)

    def use_names(self, names: Mapping[str, str]) -> None:
        """From now on messages name each conversation by its name in ``names``, by id. The fields keep the ids."""
        self.__dict__["_names"] = {**self.__dict__.get("_names", {}), **names}
        if isinstance(cause := self.__dict__.get("cause"), ForkpointError):
            cause.use_names(names)

    def _filled(self, text: str, surface: Surface | None) -> str:
        return self._with_names(text.format(**self._words(surface)).encode(errors="backslashreplace").decode())

    def _with_names(self, text: str) -> str:
        for id, name in self.__dict__.get("_names", {}).items():
            text = text.replace(id, name)  # an id is a UUID, and stands for nothing else
        return text

    def _words(self, surface: Surface | None) -> dict[str, Any]:
        """What the message is filled in from."""
        return vars(self)

    def __reduce__(self) -> tuple[Any, ...]:
        names = {"_names": self.__dict__["_names"]} if "_names" in self.__dict__ else None
        return _made, (type(self), self.code, self.fields), names

    @property
    def fields(self) -> dict[str, Any]:
        """What the error was made with, by name."""
        return {name: getattr(self, name) for name in fields_of(_kind(type(self), self.code))}


ErrorKind: TypeAlias = type[ForkpointError] | Form[..., ForkpointError]

KINDS: dict[str, ErrorKind] = {ForkpointError.code: ForkpointError}
"""What makes the errors of each code: a class, or a form of one."""


def class_of(kind: ErrorKind) -> type[ForkpointError]:
    """The class of the errors that a kind makes."""
    return kind.of if isinstance(kind, Form) else kind


def fields_of(kind: ErrorKind) -> dict[str, inspect.Parameter]:
    """The fields that an error of this kind takes, in their order."""
    return {} if kind is ForkpointError else dict(inspect.signature(kind).parameters)


def _kind(cls: type[ForkpointError], code: str) -> ErrorKind:
    return cls if code == cls.code else cast("ErrorKind", getattr(cls, code))


@lru_cache(maxsize=512)
def _paragraphs(template: str) -> tuple[str, dict[Surface | None, str]]:
    """The fact of a message, and its advice by surface; None: for everybody."""
    fact, *rest = (" ".join(paragraph.split()) for paragraph in inspect.cleandoc(template).split("\n\n"))
    advice: dict[Surface | None, str] = {}
    for paragraph in rest:
        label = _SURFACE.match(paragraph)
        surface = None if label is None else cast("Surface", label[1])
        advice[surface] = paragraph if label is None else paragraph[label.end() :]
    return fact, advice


def _made(cls: type[ForkpointError], code: str, fields: dict[str, Any]) -> ForkpointError:
    error = _kind(cls, code)(**fields)
    error.args = tuple(fields.values())  # as if they had been given in their order
    return error
