"""Types without a name of their own in a stored agent: ``list[Item]``, ``int | None``, ``Literal["yes", "no"]``.

Such a type stands there as the classes that it is made of, each by its import path, and is put together again.
"""

import functools
import importlib
import operator
import types
import typing
from typing import Any, Literal

from msgspec import Struct

from forkpoint.agent.tool import path_of

_UNION, _LITERAL = "|", "literal"
_WORDS: dict[str, Any] = {"None": type(None), "...": ...}


class TypeForm(Struct, frozen=True, omit_defaults=True):
    """A type: the import path of a class with the types in its brackets, a union of types, or the values of a Literal.

    ``of`` is ``module:name``, ``|``, ``literal``, ``None`` or ``...``.
    """

    of: str
    args: "tuple[TypeForm, ...]" = ()
    values: tuple[str | int | bool | None, ...] = ()


def form_of_type(kind: Any) -> TypeForm | None:
    """The form of a type; None if a part of it stands nowhere to be imported."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        plain = all(value is None or type(value) in (str, int, bool) for value in args)
        return TypeForm(_LITERAL, values=args) if plain else None
    if word := next((word for word, one in _WORDS.items() if kind is one), None):
        return TypeForm(word)
    of = _UNION if origin in (typing.Union, types.UnionType) else path_of(kind if origin is None else origin)
    parts = tuple(form_of_type(arg) for arg in args)
    if of is None or None in parts:
        return None
    return TypeForm(of, tuple(part for part in parts if part is not None))


def type_of_form(form: TypeForm) -> Any:
    """The type of a form. Raises whatever importing its classes raises, and what they say to the types in brackets."""
    args = tuple(map(type_of_form, form.args))
    if form.of == _LITERAL:
        return Literal[form.values]
    if form.of == _UNION:
        return functools.reduce(operator.or_, args)
    if form.of in _WORDS:
        return _WORDS[form.of]
    module, _, names = form.of.partition(":")
    found: Any = functools.reduce(getattr, names.split("."), importlib.import_module(module))
    return found[args if len(args) > 1 else args[0]] if args else found
