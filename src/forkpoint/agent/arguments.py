"""From a Python function to what a model is told of it, and from what a model writes to the function's arguments.

Types and docstring are all there is to write: the schema is made of the annotations, the descriptions of the docstring
(Google, NumPy or reStructuredText) or of ``Annotated[int, "what it means"]``. What a model writes is decoded straight
into those types, and what does not fit becomes a sentence that the model can act on.
"""

import copy
import functools
import hashlib
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import docstring_parser
import msgspec

from forkpoint.agent.output import OutputSchema
from forkpoint.errors import BadTool
from forkpoint.events import JsonText
from forkpoint.history.fences import unfenced

_NO_DEFAULT = inspect.Parameter.empty
_REASON = 500  # characters of a reason that are worth a model's attention
_SCHEMA = 8_000


class BadArguments(Exception):
    """What a model wrote does not fit the tool. The text is for the model."""


class Arguments:
    """The arguments of a function: their schema, and how to read them."""

    def __init__(self, name: str, function: Callable[..., Any], *, skip: frozenset[str] = frozenset()) -> None:
        self.description, described = _documented(function)
        self._name = name
        self._type, defaults = _struct_of(name, function, described, skip)
        self.schema: JsonText = _schema_of(name, self._type, defaults)

    @property
    def digest(self) -> str:
        """Tells whether the tool a model was shown is the one that would run."""
        return hashlib.sha256(self.schema.encode()).hexdigest()[:16]

    def read(self, text: str) -> dict[str, Any]:
        """The arguments in a model's text. Raises `BadArguments`."""
        try:
            made = msgspec.json.decode(text or "{}", type=self._type, strict=False, dec_hook=_decode)
        except Exception as error:  # a type that validates by itself may raise anything
            why, schema = _cut(_told(error), _REASON), _cut(self.schema, _SCHEMA)
            raise BadArguments(f"The arguments for {self._name} do not fit: {why}. Its schema: {schema}") from None
        return {field: getattr(made, field) for field in made.__struct_fields__}


def json_schema(kind: Any) -> JsonText:
    """The JSON schema of an answer of a type, with everything that it refers to in one document.

    Providers want an object at the top. If the type is not an object, the answer is the field ``value`` of an object.
    """
    wrapper = _wrapper(kind)
    return _written("answer", _schema_document(kind if wrapper is None else wrapper))


def decode_as(kind: Any, text: str) -> Any:
    """A value of a type, or of an `OutputSchema`, from an answer: its JSON, in a code fence or not.

    Raises ``ValueError`` with what does not fit.
    """
    text = unfenced(text)
    if isinstance(kind, OutputSchema):
        return kind.decode(text)
    wrapper = _wrapper(kind)
    try:
        if wrapper is not None:
            return msgspec.json.decode(text, type=wrapper, dec_hook=_decode).value
        return msgspec.json.decode(text, type=kind, dec_hook=_decode)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    except ValueError:
        raise
    except Exception as error:  # a type that validates by itself may raise anything
        raise ValueError(_told(error)) from error


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for ``json.loads(object_pairs_hook=)``. Raises ``ValueError`` if a name stands there
    twice: a person and a program might each read another value."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands there twice")
    return made


def typed(function: Any) -> Any:
    """What has the annotations and the docstring of something that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    if callable(function) and not inspect.isroutine(function) and not inspect.isclass(function):
        return function.__call__
    return function


def _struct_of(
    name: str, function: Callable[..., Any], described: dict[str, str], skip: frozenset[str]
) -> tuple[Any, dict[str, Any]]:
    """A type with a field for each parameter; and the defaults that msgspec would not put into its schema."""
    try:
        hints = typing.get_type_hints(typed(function), include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except Exception as error:
        raise BadTool(name, f"its annotations cannot be read ({error})") from error
    fields: list[Any] = []
    defaults: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise BadTool(name, f"{parameter.name!r} cannot be given by its name")
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise BadTool(name, f"{parameter.name!r} takes any number of arguments, and a model needs to know which")
        if parameter.name in skip:
            continue
        if parameter.name.startswith("__") and parameter.name.endswith("__"):
            raise BadTool(name, f"{parameter.name!r} is a name of Python's own")
        if parameter.default is msgspec.NODEFAULT:
            raise BadTool(name, f"the default of {parameter.name!r} stands for none")
        kind = _described(hints.get(parameter.name, Any), described.get(parameter.name))
        if parameter.default is _NO_DEFAULT:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, _default(parameter.default)))
            if not _is_hashable(parameter.default):
                defaults[parameter.name] = parameter.default
    fields.sort(key=lambda field: len(field))  # those without a default first
    try:
        made = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
        msgspec.json.schema(made, schema_hook=_schema_hook)
        shown = {name: msgspec.to_builtins(value, order="deterministic") for name, value in defaults.items()}
    except (TypeError, ValueError) as error:
        raise BadTool(name, f"a type of its arguments has no JSON form ({error})") from error
    return made, shown


def _default(value: Any) -> Any:
    """A default of a field; one that could be changed is copied for each call."""
    if _is_hashable(value):
        return value
    return msgspec.field(default_factory=lambda: copy.deepcopy(value))


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _described(kind: Any, description: str | None) -> Any:
    """The type with a description: its own words first, then the docstring's."""
    if typing.get_origin(kind) is Annotated:
        bare, *notes = typing.get_args(kind)
        words = next((note for note in notes if isinstance(note, str)), None)
        notes = [note for note in notes if not isinstance(note, str)]
        kind = Annotated[(bare, *notes)] if notes else bare
        if words is None and any(isinstance(note, msgspec.Meta) and note.description for note in notes):
            return kind
        description = words or description
    return Annotated[kind, msgspec.Meta(description=description)] if description else kind


def _documented(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What a docstring says of a function, and of each argument."""
    found = docstring_parser.parse(inspect.getdoc(typed(function)) or "")
    said = [text.strip() for text in (found.short_description, found.long_description) if text]
    described = {param.arg_name: " ".join(param.description.split()) for param in found.params if param.description}
    return "\n\n".join(said), described


def _schema_of(name: str, kind: Any, defaults: dict[str, Any]) -> JsonText:
    try:
        schema = _schema_document(kind)
    except ValueError as error:  # two models of one name
        raise BadTool(name, f"its schema cannot be written ({error})") from error
    for field, default in defaults.items():
        schema["properties"][field]["default"] = default
    return _written(name, schema)


def _schema_document(kind: Any) -> dict[str, Any]:
    """The schema of a type, with the schemas that it refers to within. The outermost object stands by itself."""
    (schema,), components = msgspec.json.schema_components(
        [kind], ref_template="#/$defs/{name}", schema_hook=_schema_hook
    )
    reference = schema.get("$ref", "").removeprefix("#/$defs/")
    if reference in components:
        schema = components[reference]
        if not _refers_to(components, reference):
            del components[reference]
    further: dict[str, Any] = {}
    schema, components = dict(_gathered(schema, further)), _gathered(components, further)
    schema.pop("title", None)
    components |= further
    return {**schema, **({"$defs": components} if components else {})}


def _written(name: str, schema: dict[str, Any]) -> JsonText:
    try:
        return msgspec.json.encode(schema, order="deterministic").decode()
    except ValueError as error:  # not valid Unicode
        raise BadTool(name, f"its schema cannot be written ({error})") from error


def _wrapper(kind: Any) -> Any:
    """The type of the object that has an answer as its ``value``; None if the answer is an object itself."""
    try:
        return _cached_wrapper(kind)
    except TypeError:  # a type that cannot be hashed, or one without a schema, which raises here again
        return _made_wrapper(kind)


def _made_wrapper(kind: Any) -> Any:
    if _schema_document(kind).get("type") == "object":
        return None
    return msgspec.defstruct("answer", [("value", kind)], forbid_unknown_fields=True)


_cached_wrapper = functools.lru_cache(maxsize=256)(_made_wrapper)


def _gathered(schema: Any, further: dict[str, Any]) -> Any:
    """The same without what pydantic's models refer to, which goes where all the others are."""
    if isinstance(schema, list):
        return [_gathered(one, further) for one in schema]
    if not isinstance(schema, dict):
        return schema
    for name, one in schema.get("$defs", {}).items():
        if further.setdefault(name, one) != one:
            raise ValueError(f"two models are called {name}")
    return {key: _gathered(value, further) for key, value in schema.items() if key != "$defs"}


def _refers_to(components: dict[str, Any], name: str) -> bool:
    return f'"#/$defs/{name}"'.encode() in msgspec.json.encode(components)


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _schema_hook(kind: type) -> dict[str, Any]:
    if _is_pydantic(kind):
        schema: dict[str, Any] = kind.model_json_schema(  # type: ignore[attr-defined]
            ref_template=f"#/$defs/{kind.__name__}.{{model}}"  # its names are its own
        )
        if "$defs" in schema:
            schema["$defs"] = {f"{kind.__name__}.{name}": one for name, one in schema["$defs"].items()}
        return schema
    raise TypeError(f"{kind!r} has no JSON form")


def _decode(kind: type, value: Any) -> Any:
    if _is_pydantic(kind):
        return kind.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
    raise TypeError(f"{kind!r} has no JSON form")


def _told(error: Exception) -> str:
    if isinstance(error, msgspec.DecodeError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [... {len(text) - limit:,} characters left out]"
