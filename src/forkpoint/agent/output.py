"""`OutputSchema`: the form of an answer that is only a JSON schema, for agents that come as data.

Such a schema may come from anybody, and so may the answer. Whatever they say, a check ends soon and fetches nothing:
references stay within the schema, patterns are matched in linear time, and the work that one check may be is counted.
"""

import contextlib
import functools
import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.errors import BadAgent
from forkpoint.events import JsonText
from forkpoint.system import extras

SIZE = 32_768
"""Bytes that a schema may have."""

PARTS = 1_000
"""Objects that a schema may be made of."""

DEPTH = 64
"""How deep a schema, or an answer that is checked, may be nested."""

PATTERNS, PATTERN, REPEATS = 32, 200, 200
"""How many patterns a schema may have, of how many characters, and what their counted repetitions (``{1,9}``) may come
to: each of those is compiled so many times."""

WORK = 100_000
"""Keywords that one check may look at. References can make a small schema endless work."""

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterable[Any]]
"""Checks a value against one keyword of a schema: the validator, what the keyword says, the value, the schema."""

_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
_DATA = {"const", "enum", "default", "examples"}
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_REPEAT = re.compile(r"\{\s*(\d+)\s*,?\s*(\d*)\s*\}")  # the engine takes blanks there, and zeros before a number
_TOKEN = re.compile(r"\\.|\(\?(?!:|P?<[A-Za-z])|.", re.DOTALL)
_ASCII = {r"\w": "0-9A-Za-z_", r"\d": "0-9"}
_CLASSES = {r"\w", r"\d", r"\s", r"\S"}
_REASON = 500  # characters of a reason that are worth a model's attention

_left: ContextVar[int] = ContextVar("forkpoint_output_work", default=WORK)


class OutputSchema(Struct, frozen=True):
    """The form of an answer: a JSON schema and what it is called. The output is then a plain JSON value.

    Raises `BadAgent` for an invalid schema, one that is too large, or that refers to something outside itself. Needs
    the extra ``server``.
    """

    name: str
    schema: JsonText

    def __post_init__(self) -> None:
        name: Any = self.name
        schema: Any = self.schema
        if not (isinstance(name, str) and 0 < len(name) <= 256 and _is_unicode(name)):
            raise BadAgent("the name of its output schema must be a text of 1 to 256 characters")
        if not isinstance(schema, str):
            raise BadAgent(f"its output schema {name!r} must be JSON, as a text")
        try:
            _validator(self.schema)
        except ValueError as error:
            raise BadAgent(f"its output schema {self.name!r} cannot be used: {error}") from None

    def decode(self, text: str) -> Any:
        """The value of an answer. Raises ``ValueError`` with what does not fit."""
        validator = _validator(self.schema)
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ValueError(f"it is not JSON ({error})") from None
        if _depth(value) > DEPTH:
            raise ValueError(f"it is nested deeper than {DEPTH} levels")
        before = _left.set(WORK)
        try:
            errors = islice(validator.iter_errors(value), 20)  # enough to choose one from
            wrong = importlib.import_module("jsonschema.exceptions").best_match(errors)
        except _TooMuch:
            raise ValueError("to check it against its schema is too much work; make it shorter") from None
        except Exception as failed:  # a reference without an end, say, or into something that is no schema
            raise ValueError(f"its schema cannot check it ({type(failed).__name__})") from None
        finally:
            _left.reset(before)
        if wrong is not None:
            raise ValueError(f"{_cut(wrong.message)} - at `{_cut(wrong.json_path)}`")
        return value


def as_output(given: Any) -> Any:
    """The form of an answer as an agent has it: a dict is a JSON schema. Raises `BadAgent`."""
    if not isinstance(given, dict):
        return given
    try:
        schema = msgspec.json.encode(given).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadAgent(f"its output schema is not JSON ({error})") from None
    title = given.get("title")
    return OutputSchema(title[:256] if isinstance(title, str) and title else "answer", schema)


class _TooMuch(Exception):
    """One check was more work than any may be."""


@functools.lru_cache(maxsize=256)
def _validator(text: JsonText) -> Any:
    """What checks answers against a schema. Raises ``ValueError`` with what is wrong with the schema."""
    schema = _read(text)
    validators, referencing, _ = (
        extras.load_module(module, "server", "An output that is a JSON schema")
        for module in ("jsonschema.validators", "referencing", "pydantic_core")
    )
    draft = validators.Draft202012Validator
    if (named := schema.pop("$schema", None)) is not None:
        draft = validators.validator_for({"$schema": named}, default=None) if isinstance(named, str) else None
        if draft is None:
            raise ValueError("its $schema is no draft that is known here; leave it out for 2020-12")
    _check_places(schema)
    _check_patterns(schema)
    try:
        draft.check_schema(schema, format_checker=None)  # patterns are read below, and by no other engine
    except Exception as error:  # a schema may be wrong in ways that the check itself does not survive
        raise ValueError(f"it is not valid ({_cut(getattr(error, 'message', str(error)))})") from None
    # A registry that knows nothing but the drafts themselves: what is not here is not looked for elsewhere.
    validator = _counted(draft)(schema, registry=referencing.Registry())
    for part in _subschemas(schema):
        _check_part(part, validator)
    return validator


def _read(text: JsonText) -> dict[str, Any]:
    if not _is_unicode(text):
        raise ValueError("it is not valid Unicode")
    if (size := len(text.encode())) > SIZE:
        raise ValueError(f"it has {size:,} bytes, and the limit is {SIZE:,}")
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(schema, dict):
        raise ValueError("it must be a JSON object")
    if _depth(schema) > DEPTH:
        raise ValueError(f"it is nested deeper than {DEPTH} levels")
    if (parts := sum(1 for _ in _objects(schema))) > PARTS:
        raise ValueError(f"it is made of {parts:,} objects, and the limit is {PARTS:,}")
    return schema


def _check_places(schema: dict[str, Any]) -> None:
    """Raises ``ValueError`` for what would make a part of the schema another document, of other rules."""
    for place in _objects(schema):
        if place is not schema and "$schema" in place:
            raise ValueError("$schema may stand at its top only")
    for part in _subschemas(schema):
        if part is not schema and isinstance(part.get("$id"), str):
            raise ValueError("$id may stand at its top only")
        for keyword in _REFERENCES & part.keys():
            if not (isinstance(part[keyword], str) and part[keyword].startswith("#")):
                raise ValueError(f"{keyword} {_cut(str(part[keyword]), 100)!r} leads elsewhere, and nothing is fetched")
        if "patternProperties" in part and "unevaluatedProperties" in part:
            raise ValueError("patternProperties and unevaluatedProperties cannot stand together; name the properties")


def _check_part(part: dict[str, Any], validator: Any) -> None:
    """Raises ``ValueError`` for a reference that leads nowhere, and for a pattern that cannot be matched safely."""
    for keyword in _REFERENCES & part.keys():
        try:
            validator._resolver.lookup(part[keyword])
        except Exception:
            raise ValueError(f"{keyword} {_cut(part[keyword], 100)!r} leads nowhere") from None
    for pattern in _patterns(part):
        try:
            _pattern(pattern)
        except Exception as error:
            why = str(error).rpartition("error: ")[2].strip().rpartition("SchemaError: ")[2]
            raise ValueError(f"its pattern {_cut(pattern, 100)!r} cannot be used ({_cut(why)})") from None


def _check_patterns(schema: dict[str, Any]) -> None:
    """Raises ``ValueError`` before patterns are compiled that would take long, or much memory for good."""
    patterns = [pattern for part in _subschemas(schema) for pattern in _patterns(part)]
    if len(patterns) > PATTERNS or any(len(pattern) > PATTERN for pattern in patterns):
        raise ValueError(f"it has more than {PATTERNS} patterns, or one of more than {PATTERN} characters")
    if sum(map(_repeats, patterns)) > REPEATS:
        raise ValueError(f"its patterns count more than {REPEATS} repetitions; use * or +, or maxLength")


def _patterns(part: dict[str, Any]) -> Iterator[str]:
    if isinstance(part.get("pattern"), str):
        yield part["pattern"]
    named = part.get("patternProperties")
    yield from named if isinstance(named, dict) else ()


def _repeats(pattern: str) -> int:
    """How many times parts of a pattern are compiled, at worst: repetitions of repetitions multiply."""
    return math.prod(max(int(least or 0), int(most or 0), 1) for least, most in _REPEAT.findall(pattern))


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas within it, but not the values that it names."""
    if isinstance(schema, list):
        for one in schema:
            yield from _subschemas(one)
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            yield from _subschemas(list(value.values()))
        elif keyword not in _DATA:
            yield from _subschemas(value)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(one)


def _depth(value: Any) -> int:
    """How deep a JSON value is nested, up to one more than is allowed."""
    level, depth = [value], 0
    while depth <= DEPTH and (level := [one for one in level if isinstance(one, dict | list)]):
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


# A validator whose work is counted, and whose patterns and lists cannot take time without end.


@functools.cache
def _counted(draft: Any) -> Any:
    ours: dict[str, Keyword] = {
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "additionalProperties": _check_additional_properties,
        "uniqueItems": _check_unique,
    }
    keywords = {name: _counting(ours.get(name, keyword)) for name, keyword in draft.VALIDATORS.items()}
    return importlib.import_module("jsonschema.validators").extend(draft, keywords)


def _counting(keyword: Keyword) -> Keyword:
    def check(validator: Any, says: Any, value: Any, schema: Any) -> Iterable[Any]:
        _spend(len(says) if isinstance(says, list | dict) else 1)
        return keyword(validator, says, value, schema) or ()

    return check


def _spend(work: int) -> None:
    left = _left.get() - work
    if left < 0:
        raise _TooMuch
    _left.set(left)


@functools.lru_cache(maxsize=64)
def _pattern(pattern: str) -> Any:
    """Tells whether a text matches. An engine without backtracking: it takes linear time, whatever the pattern."""
    core = importlib.import_module("pydantic_core")
    return core.SchemaValidator({"type": "str", "pattern": _as_meant(pattern), "regex_engine": "rust-regex"})


def _as_meant(pattern: str) -> str:
    """A pattern as JSON schemas mean it, with ASCII for ``\\w`` and ``\\d``: Unicode costs a hundred times more.

    Raises ``ValueError`` for what that language does not have, and this engine does: it changes what a pattern costs.
    """
    made: list[str] = []
    inside, before = False, ""  # whether it is within [...], and the sign before
    for sign in _TOKEN.findall(pattern):
        if inside and sign == before == "-":
            raise ValueError("error: -- is not supported in brackets")  # to this engine it is an operator
        if inside and before == "-" and sign in _CLASSES:
            made[-1] = r"\-"  # a class has no range: beside one a dash is a dash
        made.append(r"\-" if inside and sign == "-" and before in _CLASSES else _meant(sign, inside))
        if sign in {"[", "]"}:
            inside = sign == "["
        before = sign
    return "".join(made)


def _meant(sign: str, inside: bool) -> str:
    """One sign of a pattern, within ``[...]`` or not."""
    if sign in _ASCII:
        return _ASCII[sign] if inside else f"[{_ASCII[sign]}]"
    if sign in {r"\W", r"\D"} and not inside:
        return f"[^{_ASCII[sign.lower()]}]"
    if sign == r"\b" and not inside:
        return r"(?-u:\b)"
    if sign in {r"\W", r"\D", r"\B", r"\p", r"\P"} or (sign.startswith("(?") and not inside):
        raise ValueError(f"error: {sign} is not supported here")
    return f"\\{sign}" if inside and sign in {"[", "&", "~"} else sign  # to this engine they would be operators


def _matches(pattern: str, text: str) -> bool:
    _spend(1 + len(text) // 64)
    return bool(_pattern(pattern).isinstance_python(text))


def _wrong(message: str) -> Any:
    return importlib.import_module("jsonschema.exceptions").ValidationError(message)


def _check_pattern(validator: Any, says: Any, value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, str) and not _matches(says, value):
        yield _wrong(f"{_cut(repr(value), 100)} does not match {says!r}")


def _check_pattern_properties(validator: Any, says: Any, value: Any, schema: Any) -> Iterator[Any]:
    for pattern, part in says.items() if isinstance(value, dict) else ():
        for name, inner in value.items():
            if _matches(pattern, name):
                yield from validator.descend(inner, part, path=name, schema_path=pattern)


def _check_additional_properties(validator: Any, says: Any, value: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, inner in value.items():
        if name in named or any(_matches(pattern, name) for pattern in patterns):
            continue
        if says is False:
            yield _wrong(f"the property {_cut(repr(name), 100)} is not one of its schema")
        else:
            yield from validator.descend(inner, says, path=name)


def _check_unique(validator: Any, says: Any, value: Any, schema: Any) -> Iterator[Any]:
    if says and isinstance(value, list) and len(set(map(_alike, value))) < len(value):
        yield _wrong("its items are not all different")


def _alike(value: Any) -> bytes:
    """The same for values that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    return msgspec.json.encode(_plain(value), order="deterministic")


def _plain(value: Any) -> Any:
    match value:
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case float() if value.is_integer():
            return int(value) if abs(value) < 2**63 else value
        case _:
            return value


def _is_unicode(text: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        text.encode()
        return True
    return False


def _cut(text: str, limit: int = _REASON) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [...]"
