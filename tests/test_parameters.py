"""Arguments against annotations: what fits, and how it is told what would."""

import io
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, Annotated, Any, Literal, Protocol
from uuid import UUID, uuid4

import pytest

from forkpoint.errors import BadArgument, BadName, ForkpointError
from forkpoint.parameters import Count, Words, checked, unfit


class Named(Protocol):
    name: str

    def shown(self) -> str: ...


class Thing:
    name = "thing"

    def shown(self) -> str:
        return self.name


FITS: list[tuple[Any, Any]] = [
    ("a", str),
    (3, int),
    (3, float),
    (True, bool),
    (None, str | None),
    (uuid4(), str | UUID),
    ("own", Literal["own", "inherit"]),
    ({"a": "b"}, Mapping[str, str]),
    ({"a": object()}, Mapping[str, object]),
    (["a"], Collection[str]),
    (("a",), Sequence[str]),
    ({"a": 1}, Iterable[str]),
    (["a", "b"], tuple[str, ...]),
    (("a", 1), tuple[str, int]),
    ((one for one in "ab"), Iterable[str]),
    (len, Callable[[str], int]),
    (os.curdir, str | os.PathLike[str]),
    (io.BytesIO(), IO[bytes]),
    (Thing(), Named),
    (1, Count),
    (object(), Any),
]
DOES_NOT: list[tuple[Any, Any, str]] = [
    (5, str, "it is a text"),
    (True, int, "it is a whole number"),
    (1, bool, "it is True or False"),
    ("yes", bool | None, "it is True, False or None"),
    (float("nan"), float, "it is a finite number"),
    (5, str | UUID | None, "it is a text, a UUID or None"),
    ("both", Literal["own", "inherit"], "it is own or inherit"),
    (1, Literal[True], "it is True"),
    ({"a": 1}, Mapping[str, str], "it is a mapping of texts to texts"),
    (["a"], Mapping[str, str], "it is a mapping of texts to texts"),
    ("ab", Collection[str], "it is a list of texts"),
    ([1], Sequence[str], "it is a list of texts"),
    (("a",), tuple[str, int], "it is a list of texts"),
    ([1], Iterable[Callable[[], None]] | None, "it is a list of functions or None"),
    (5, str | os.PathLike[str], "it is a text or a path"),
    (5, IO[bytes], "it is an open file"),
    (5, Named, "it is a Named"),
    (0, Count | None, "it is 1 at least"),
    ("1", Count, "it is a whole number"),
    (5, Annotated[Named, Words("a thing with a name")] | None, "it is a thing with a name or None"),
]


@pytest.mark.parametrize(("value", "hint"), FITS, ids=range(len(FITS)))
def test_what_an_annotation_allows_fits(value: Any, hint: Any) -> None:
    assert unfit(value, hint) is None


@pytest.mark.parametrize(("value", "hint", "why"), DOES_NOT, ids=range(len(DOES_NOT)))
def test_what_it_does_not_allow_is_told_in_words(value: Any, hint: Any, why: str) -> None:
    assert unfit(value, hint) == why


def test_a_checked_function_names_the_argument_and_leaves_the_rest_to_python() -> None:
    @checked()
    def join(*texts: str, between: str = "") -> str:
        return between.join(texts)

    assert join("a", "b", between="-") == "a-b"
    with pytest.raises(BadArgument, match=r"join\(\) cannot do anything with texts=5: it is a text"):
        join("a", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="beyond"):
        join(beyond=3)  # type: ignore[call-arg]


def test_a_long_value_is_shown_short_and_another_error_may_hide_it() -> None:
    def hidden(_: str, name: str, value: Any, why: str) -> ForkpointError:
        return BadName(name, type(value).__name__, why)

    @checked()
    def plain(text: str) -> None: ...

    @checked(refused=hidden)
    def secretive(text: str) -> None: ...

    with pytest.raises(BadArgument) as refused:
        plain({"password": "x" * 10_000})  # type: ignore[arg-type]
    assert len(str(refused.value)) < 300
    with pytest.raises(BadName) as told:
        secretive({"password": "hunter2"})  # type: ignore[arg-type]
    assert "hunter2" not in str(told.value)
