"""Callables of a stored agent: how each stands in its document, and how it is found again.

It stands there by its import path and the digest of its schema. It is taken from an agent that is given, or imported;
what is nowhere, or not as it was, is noted as an `Item`, and the next one is looked for.
Tests: tests/agent/stored/test_document.py.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent, output_schema
from forkpoint.agent.approval import Asker, Policy, policies
from forkpoint.agent.condense.condenser import Condenser, Condenses, Window, is_condenser
from forkpoint.agent.hooks.hook import Hook, StoredHook, from_stored
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.stored.type_forms import TypeForm, form_of_type, type_of_form
from forkpoint.agent.tool import SecretNames, Tool, as_tool, path_of
from forkpoint.errors import ForkpointError, Item
from forkpoint.events import JsonText

_NOWHERE: Any = object()  # None may well stand at a path


class Reference(Struct, frozen=True, omit_defaults=True):
    """A callable or a type in a stored agent. Without a path it can only come from an agent that is given.

    An output that is an `OutputSchema` has its schema here, as the very text that it is, and needs no path. Nor does a
    type that is made of others, like ``list[int]``: it has its form.
    """

    name: str
    path: str | None = None
    digest: str = ""
    risky: bool = False
    repeatable: bool = False
    schema: msgspec.Raw = msgspec.Raw()
    secrets: SecretNames = ()
    form: TypeForm | None = None


class StoredCondenser(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="import"):
    """A condenser of somebody's own in a stored agent: the name of its class, and where the object itself stands."""

    name: str
    path: str | None = None


def reference_of(tool: Tool) -> Reference:
    """A tool as it stands in a document."""
    return Reference(tool.name, tool.path, tool.digest, tool.risky, tool.repeatable, secrets=tool.secrets)


def policy_reference(policy: Asker) -> Reference:
    """A policy that is a function, as it stands in a document."""
    return Reference(getattr(policy, "__name__", "approval"), path_of(policy))


def condenser_reference(condenser: Condenses) -> StoredCondenser:
    """A condenser of somebody's own, as it stands in a document."""
    return StoredCondenser(type(condenser).__name__, _place_of(condenser))


def output_reference(output: Any, schema: JsonText) -> Reference:
    """The form of an answer as it stands in a document."""
    if isinstance(output, OutputSchema):
        return schema_reference(output)
    path, form = path_of(output), None
    if path is None:
        form = form_of_type(output)
        path = _place_of(output) if form is None else None
    return Reference(name_of(output), path, _digest(schema), form=form)


def schema_reference(output: OutputSchema) -> Reference:
    """The form of an answer as it stands in a document that is data alone."""
    return Reference(output.name, digest=_digest(output.schema), schema=msgspec.Raw(output.schema.encode()))


def name_of(output: Any) -> str:
    """What the form of an answer is called."""
    if isinstance(output, OutputSchema):
        return output.name
    return output.__name__ if isinstance(output, type) else str(output)


def find_tool(reference: Reference, given: Agent | None, missing: list[Item], *, same: bool) -> Tool | None:
    """The tool that is meant. With ``same`` the given agent's is taken only if it is known to be that one."""
    found = given.tool(reference.name) if given is not None else None
    if found is not None and same and reference_of(found) != reference:
        found = None
    if found is None:
        value = _imported(reference, "tool", missing)
        if value is _NOWHERE:
            return None
        try:
            found = as_tool(value)
        except ForkpointError as error:
            missing.append(Item("tool", reference.name, str(error)))
            return None
    if (changed := _changed(reference, found)) is not None:
        missing.append(Item("tool", reference.name, changed))
        return None
    return found


def find_output(reference: Reference | None, given: Agent | None, missing: list[Item]) -> Any:
    """The form of the answer that is meant, if there is one."""
    if reference is None:
        return None
    found = given.output if given is not None and given.output is not None else None
    if schema := bytes(reference.schema).decode():
        return _find_schema(reference, schema, found, missing)
    if found is None:
        found = _imported(reference, "output", missing)
    if found is _NOWHERE:
        return None
    try:
        schema = output_schema(found) or ""
    except ForkpointError as error:
        missing.append(Item("output", reference.name, str(error)))
        return None
    if _digest(schema) != reference.digest:
        missing.append(Item("output", reference.name, "its fields have changed"))
        return None
    return found


def find_hooks(stored: Sequence[StoredHook], given: Agent | None, missing: list[Item]) -> tuple[Hook, ...]:
    """The hooks that are meant, in their order, without those that are missing.

    A function is taken from the agent given by its path; one that has none by its moment and name.
    """
    offered = given.hooks if given is not None else ()
    found: list[Hook] = []
    for one in stored:
        own = next((hook for hook in offered if hook.stored() == one), None)
        if own is None and one.command is None and one.function is None:
            missing.append(Item("hook", one.name or one.moment, "it has no import path"))
            continue
        try:
            hook = own or from_stored(one)
            if hook.function is not None:
                hook.find()
        except ForkpointError as error:
            missing.append(Item("hook", one.name or one.moment, str(error)))
        except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
            why = f"{one.function} cannot be imported ({type(error).__name__}: {error})"
            missing.append(Item("hook", one.name or one.function or one.moment, why))
        else:
            found.append(hook)
    return tuple(found)


def find_condenser(
    stored: Condenser | Window | StoredCondenser | None, given: Agent | None, missing: list[Item], *, same: bool
) -> Condenses | None:
    """The condenser that is meant. With ``same`` the given agent's is taken only if it is known to be that one."""
    if not isinstance(stored, StoredCondenser):
        return stored
    own = given.condenser if given is not None else None
    if own is not None and not isinstance(own, Condenser | Window):
        known = condenser_reference(own)
        if (known == stored and known.path is not None) or (not same and known.name == stored.name):
            return own
    found = _imported(Reference(stored.name, stored.path), "condenser", missing)
    if found is _NOWHERE:
        return None
    if not is_condenser(found):
        missing.append(Item("condenser", stored.name, f"at {stored.path} is no condenser now"))
        return None
    return found


def find_policies(
    stored: Sequence[Literal["never", "always", "risky"] | Reference],
    given: Agent | None,
    missing: list[Item],
    *,
    same: bool,
) -> tuple[Policy, ...]:
    """The policies that are meant, in their order; instead of one that is missing, that every call is asked about.

    Functions of the agent given are taken by their paths. Unless it must be the ``same``, also by their names, if there
    are as many of a name as are meant, in their order: one policy must not be taken for another. And if there is only
    one here and one there, it is that.
    """
    offered: list[Any] = [policy for policy in policies(given.approval) if callable(policy)] if given else []
    functions = [one for one in stored if isinstance(one, Reference)]
    paths = {one.path for one in functions if one.path is not None}
    by_path = {path: one for one in offered if (path := path_of(one)) in paths}
    others = [] if same else [one for one in offered if path_of(one) not in paths]
    alone = len(functions) == len(offered) == 1
    meant = Counter(one.name for one in functions if one.path not in by_path)
    here = Counter(policy_reference(one).name for one in others)

    def find(reference: Reference) -> Any:
        if reference.path in by_path:
            return by_path[reference.path]
        if others and (alone or meant[reference.name] == here[reference.name]):
            named = (n for n, one in enumerate(others) if alone or policy_reference(one).name == reference.name)
            return others.pop(next(named))
        found = _imported(reference, "approval", missing)
        if found is not _NOWHERE and not callable(found):
            missing.append(Item("approval", reference.name, f"at {reference.path} is no function now"))
        return found if callable(found) else "always"  # if anybody goes on without it, nothing runs unasked

    return tuple(find(one) if isinstance(one, Reference) else one for one in stored)


def _changed(reference: Reference, found: Tool) -> str | None:
    """Why a tool is not the one that was stored; None if it is."""
    if found.name != reference.name:
        return f"at {reference.path} is a tool {found.name} now"
    if found.digest != reference.digest:
        return "its arguments have changed"
    for what in ("risky", "repeatable"):
        if getattr(found, what) != getattr(reference, what):
            return f"it was {'' if getattr(reference, what) else 'not '}{what}, and that has changed"
    if found.secrets != reference.secrets:
        return "the secrets that it is given have changed"
    return None


def _find_schema(reference: Reference, schema: JsonText, given: Any, missing: list[Item]) -> Any:
    """The type of the agent given if its schema is this very one, or else the schema itself."""
    digest = _digest(schema)
    if reference.digest and reference.digest != digest:
        missing.append(Item("output", reference.name, "its schema is not the one that was stored"))
        return None
    if given is not None and _digest(output_schema(given) or "") == digest:
        return given
    try:
        return OutputSchema(reference.name, schema)
    except ForkpointError as error:
        missing.append(Item("output", reference.name, str(error)))
        return None


def _imported(
    reference: Reference, kind: Literal["tool", "output", "approval", "condenser"], missing: list[Item]
) -> Any:
    """What stands at a path; `_NOWHERE`, and a word on why, if nothing does."""
    form = TypeForm(reference.path) if reference.path is not None else reference.form
    if form is None:
        missing.append(Item(kind, reference.name, "it has no import path"))
        return _NOWHERE
    try:
        return type_of_form(form)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        why = f"{reference.path or reference.name} cannot be imported ({type(error).__name__}: {error})"
        missing.append(Item(kind, reference.name, why))
        return _NOWHERE


def _place_of(value: object) -> str | None:
    """Where this very object stands by a name in a module that is loaded, its class's before others; None if nowhere.

    An object does not know its own name, as a function does.
    """
    own = type(value).__module__
    for module in (own, *(name for name in list(sys.modules) if name != own)):
        for name, other in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            if other is value:
                return f"{module}:{name}"
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
