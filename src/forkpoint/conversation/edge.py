"""The edge of the Python API: what holds for each public method of a face, said once.

Arguments are checked before anything is done (`forkpoint.parameters`), and errors name a conversation as its user does.
Tests: tests/conversation/test_edge.py.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from forkpoint.errors import ForkpointError
from forkpoint.parameters import checked

T = TypeVar("T")

Names = Callable[[Any], Mapping[str, str]]
"""The names that errors of an object's methods use, by id."""


def edge(names: Names | None = None) -> Callable[[type[T]], type[T]]:
    """Decorates a face: all its public methods are checked, and their errors use these names."""

    def decorated(cls: type[T]) -> type[T]:
        for name, member in list(vars(cls).items()):
            if name == "__init__":
                setattr(cls, name, checked(called=f"{cls.__name__.removeprefix('Async')}()")(member))
            elif name.startswith("_"):
                continue
            elif isinstance(member, classmethod):
                setattr(cls, name, classmethod(checked()(member.__func__)))
            elif inspect.isfunction(member):
                setattr(cls, name, _named(checked()(member), names))
        return cls

    return decorated


@contextmanager
def by_name(names: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Errors that pass through here name conversations by these names."""
    try:
        yield
    except ForkpointError as error:
        error.use_names(names())
        raise


def _named(method: Callable[..., Any], names: Names | None) -> Callable[..., Any]:
    if names is None:
        return method

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        with by_name(lambda: names(self)):
            return method(self, *args, **kwargs)

    @functools.wraps(method)
    async def waiting(self: Any, *args: Any, **kwargs: Any) -> Any:
        with by_name(lambda: names(self)):
            return await method(self, *args, **kwargs)

    return waiting if inspect.iscoroutinefunction(method) else wrapper
