"""Classes of errors with several codes: each further code is a `Form` of its class. Tests: tests/test_errors.py"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, TypeGuard, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Form(Generic[P, T_co]):
    """A further code of a class of errors, written as a method of the class.

    The name of the method is the code, its parameters are the error's fields, its docstring is the message, and its
    body sets those fields of the class that are not parameters. Called on the class, it makes an error. Fields of the
    class that have a default can be given too, by name.
    """

    of: type[T_co]

    def __init__(self, method: Callable[..., None]) -> None:
        self.code, self.__doc__, self._method = method.__name__, method.__doc__, method

    def __set_name__(self, owner: type[T_co], name: str) -> None:
        self.of = owner

    def __get__(self, instance: object, owner: type[T]) -> "Form[P, T]":
        return cast("Form[P, T]", self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        given = self.__signature__.bind(*args, **kwargs)
        given.apply_defaults()
        error = self.of.__new__(self.of, *given.arguments.values())
        vars(error).update(given.arguments, code=self.code)
        self._method(error, **{name: given.arguments[name] for name in self._own})
        return error

    def __repr__(self) -> str:
        return f"{self.of.__name__}.{self.code}"

    def made(self, error: object) -> TypeGuard[T_co]:
        """Whether an error has this code."""
        return isinstance(error, self.of) and vars(error).get("code") == self.code

    @cached_property
    def __signature__(self) -> inspect.Signature:
        rest = (
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in dataclasses.fields(cast("Any", self.of))
            if field.default is not dataclasses.MISSING and field.name not in self._own
        )
        return inspect.Signature([*self._own.values(), *rest])

    @cached_property
    def _own(self) -> dict[str, inspect.Parameter]:
        _, *own = inspect.signature(self._method).parameters.values()
        return {parameter.name: parameter for parameter in own}


def form(method: Callable[Concatenate[Any, P], None]) -> Form[P, Any]:
    """Makes a method of a class of errors a form of it."""
    return Form(method)
