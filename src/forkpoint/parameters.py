"""What a caller passes, checked against the annotations of the function that takes it.

Python checks nothing, so a wrong value would surface deep inside as a ``TypeError`` of something else. The edge of the
library says what is wrong instead, before anything is done, and names the argument. The annotations are the rules, and
there is no second list of them. Tests: tests/test_parameters.py.
"""

import functools
import inspect
import math
import os
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar, Union
from uuid import UUID

from msgspec import Struct

from forkpoint.errors import BadArgument, ForkpointError

F = TypeVar("F", bound=Callable[..., Any])
Refusal: TypeAlias = Callable[[str, str, Any, str], ForkpointError]
"""Makes the error of a function's name, of the argument's name and value, and of why the value does not fit."""


def refusal(call: str, name: str, value: Any, why: str) -> ForkpointError:
    """The error that shows the value. Where a value may be a secret, another error is made."""
    return BadArgument(call, f"{name}={_SHORT.repr(value)}", why)


class AtLeast(Struct, frozen=True):
    """In `Annotated`: the least that a number may be."""

    least: int


class Words(Struct, frozen=True):
    """In `Annotated`: how messages say what is meant, instead of the names of classes."""

    text: str


Count: TypeAlias = Annotated[int, AtLeast(1)]
"""How many of something: one at least."""


def checked(*, called: str | None = None, refused: Refusal = refusal, deep: bool = True) -> Callable[[F], F]:
    """Decorates a function: it raises `BadArgument` for an argument that does not fit its annotation.

    ``called`` is how messages name the function, and ``refused`` makes another error. ``deep=False`` leaves what is in
    a list or a mapping to whoever takes it. An argument that the function does not have is left to Python's own error.
    """

    def decorated(function: F) -> F:
        signature, shown = inspect.signature(function), called or f"{function.__name__}()"

        def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return  # the call itself raises it
            for name, hint, kind in _hints(function):
                several = kind is inspect.Parameter.VAR_POSITIONAL
                for value in () if name not in given else given[name] if several else (given[name],):
                    if (why := unfit(value, hint, deep=deep)) is not None:
                        raise refused(shown, name, value, why)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return function(*args, **kwargs)

        @functools.wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return typing.cast("F", waiting if inspect.iscoroutinefunction(function) else wrapper)

    return decorated


def unfit(value: Any, hint: Any, *, deep: bool = True) -> str | None:
    """Why a value does not fit an annotation; None if it does."""
    if _fits(value, hint, deep):
        return None
    least = [one.least for one in _conditions(hint) if isinstance(one, AtLeast)]
    if least and isinstance(value, int) and not isinstance(value, bool):
        return f"it is {least[0]} at least"
    return f"it is {_words(hint)}"


def unfit_fields(value: Struct) -> Iterator[tuple[str, str]]:
    """The fields of a Struct whose values do not fit their annotations, each with the reason."""
    for name, hint in _fields(type(value)):
        if (why := unfit(getattr(value, name), hint)) is not None:
            yield name, why


@functools.lru_cache(maxsize=512)
def _hints(function: Callable[..., Any]) -> tuple[tuple[str, Any, Any], ...]:
    """The parameters of a function that have an annotation, each with that and its kind."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    return tuple((name, hints[name], one.kind) for name, one in parameters.items() if name in hints)


@functools.lru_cache(maxsize=64)
def _fields(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((name, hints[name]) for name in kind.__struct_fields__)


def _fits(value: Any, hint: Any, deep: bool = True) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if hint is None:
        return value is None
    if origin is Annotated:
        return _fits(value, args[0], deep) and all(value >= one.least for one in args[1:] if isinstance(one, AtLeast))
    if origin in (Union, types.UnionType):
        return any(_fits(value, one, deep) for one in args)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in args)
    if origin is None:
        return _is_a(value, hint)
    return _fits_generic(value, origin, args, deep)


def _is_a(value: Any, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in _members(kind))
    return isinstance(value, kind) if isinstance(kind, type) else True


def _fits_generic(value: Any, origin: Any, args: tuple[Any, ...], deep: bool) -> bool:
    if origin is typing.IO:
        return hasattr(value, "read") or hasattr(value, "write")
    if origin is tuple and isinstance(value, list):
        value = tuple(value)
    if not isinstance(origin, type) or not isinstance(value, origin):
        return False
    if isinstance(value, Mapping) and issubclass(origin, Mapping):
        return not deep or all(_fits(key, args[0]) and _fits(one, args[1]) for key, one in value.items())
    if origin in (os.PathLike, Callable, type) or not issubclass(origin, Iterable):
        return True
    if isinstance(value, str | bytes):
        return False  # one text is not its letters
    if not deep or not isinstance(value, Collection):
        return True  # what can be read once is read by whoever takes it
    if issubclass(origin, tuple) and args[-1:] != (...,):
        return len(value) == len(args) and all(map(_fits, value, args))
    return all(_fits(one, args[0]) for one in value)


@functools.lru_cache(maxsize=64)
def _members(protocol: Any) -> frozenset[str]:
    """What a protocol asks for."""
    bases = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False) and base is not Protocol]
    named = {name for base in bases for name in (*vars(base), *getattr(base, "__annotations__", ()))}
    return frozenset(name for name in named if not name.startswith("_"))


def _conditions(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)[1:]
    return tuple(one for arm in typing.get_args(hint) for one in _conditions(arm)) if _is_union(hint) else ()


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


_PLAIN = {
    str: "a text",
    UUID: "a UUID",
    int: "a whole number",
    float: "a finite number",
    bytes: "bytes",
    dict: "a dict",
    types.NoneType: "None",
}
_SEVERAL = {str: "texts", float: "numbers", int: "whole numbers", object: "any values", Any: "any values"}


def _words(hint: Any) -> str:
    """What an annotation allows, in words: ``a text, a Turn or None``."""
    arms = [word for arm in _arms(hint) for word in _arm_words(arm)]
    several = list(dict.fromkeys(arms))
    return several[0] if len(several) == 1 else f"{', '.join(several[:-1])} or {several[-1]}"


def _arms(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is Annotated:
        inner, *conditions = typing.get_args(hint)
        return [one for one in conditions if isinstance(one, Words)] or _arms(inner)
    return [one for arm in typing.get_args(hint) for one in _arms(arm)] if _is_union(hint) else [hint]


def _arm_words(hint: Any) -> list[str]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, Words):
        return [hint.text]
    if origin is Literal:
        return list(map(str, args))
    if hint is bool:
        return ["True", "False"]
    if hint is None or hint in _PLAIN:
        return [_PLAIN[types.NoneType if hint is None else hint]]
    if origin is os.PathLike:
        return ["a path"]
    if origin in (Callable, typing.IO):
        return ["a function" if origin is Callable else "an open file"]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return [f"a mapping of {_plural(args[0])} to {_plural(args[1])}"]
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return [f"a list of {_plural(args[0])}"]
    name = getattr(origin or hint, "__name__", str(hint))
    return [f"{'an' if name[0] in 'AEIO' or name == 'LLM' else 'a'} {name}"]


def _plural(hint: Any) -> str:
    if hint in _SEVERAL:
        return _SEVERAL[hint]
    if typing.get_origin(hint) is Callable:
        return "functions"
    words = _words(hint)
    return (
        words
        if _is_union(hint) or typing.get_origin(hint) is Annotated
        else words.removeprefix("a ").removeprefix("an ") + "s"
    )


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
