"""The guards of a stored agent: what stays with a conversation, whichever agent comes into it."""

import msgspec
import pytest

from forkpoint import Agent, Limits
from forkpoint.agent.hooks.hook import Hook
from forkpoint.agent.stored.document import bind, document_of
from forkpoint.agent.stored.guards import GUARDS, with_guards_of

STRICT = Agent(
    "scripted/strict",
    instructions="Be careful.",
    approval=("risky", "always"),
    limits=Limits(steps=3),
    hooks=(Hook("before_tool", command="exit 2"),),
)
LOOSE = Agent("scripted/loose", instructions="Be quick.", unattended="run", name="loose")


@pytest.mark.parametrize(("comes", "stays"), [(STRICT, LOOSE), (LOOSE, STRICT), (LOOSE, LOOSE)])
def test_the_agent_comes_and_its_guards_stay(comes: Agent, stays: Agent) -> None:
    document = with_guards_of(comes.to_json(), stays.to_json())
    put_together = bind(document)
    expected = comes.replace(**{guard: getattr(stays, guard) for guard in GUARDS})
    assert put_together == expected
    assert document == document_of(expected), "to the byte, so that an agent in hand is known to be this one"


def test_a_guard_that_is_not_written_has_its_default_whatever_the_other_says() -> None:
    document = with_guards_of(STRICT.to_json(), LOOSE.to_json())
    assert not {"approval", "hooks"} & set(msgspec.json.decode(document))
    assert (bind(document).approval, bind(document).hooks, bind(document).unattended) == ("never", (), "run")


def test_a_field_that_only_another_version_knows_comes_along_as_it_is() -> None:
    newer = msgspec.json.encode({**msgspec.json.decode(LOOSE.to_json()), "colour": {"a": 1}}).decode()
    assert msgspec.json.decode(with_guards_of(newer, STRICT.to_json()))["colour"] == {"a": 1}
    assert "colour" not in msgspec.json.decode(with_guards_of(STRICT.to_json(), newer))


@pytest.mark.parametrize("other", ['"support"', "[]", "nonsense"])
def test_what_is_no_document_is_refused(other: str) -> None:
    for pair in ((other, STRICT.to_json()), (STRICT.to_json(), other)):
        with pytest.raises(msgspec.DecodeError):
            with_guards_of(*pair)
