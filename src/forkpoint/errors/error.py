"""What every error of Forkpoint has: a code, fields, and a message for each surface. Tests: tests/test_errors.py."""

import dataclasses
import inspect
from typing import Any, ClassVar, TypeAlias, cast, dataclass_transform

from forkpoint.errors.form import Form


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
        template = _kind(type(self), self.code).__doc__
        if template is None:  # python -OO drops docstrings; what happened must still be told
            return f"{self.code}: {vars(self)}"
        text = " ".join(inspect.cleandoc(template).split())
        return text.format(**vars(self)).encode(errors="backslashreplace").decode()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self.code, self.fields)

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


def _made(cls: type[ForkpointError], code: str, fields: dict[str, Any]) -> ForkpointError:
    error = _kind(cls, code)(**fields)
    error.args = tuple(fields.values())  # as if they had been given in their order
    return error
