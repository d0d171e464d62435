"""How callers name conversations: an id, or a name; and no name that a client did not choose."""

import pytest

from forkpoint.backend.names import as_id, check_chosen_name
from forkpoint.errors import BadName
from forkpoint.ids import new_id

PLACEHOLDERS = [
    *("None", "none", "NONE", "NaN", "nan", "NULL", "null", "nil", "undefined", "Undefined", "true", "False"),
    *("[object Object]", "[object Promise]", "{{CHAT_ID}}", "{{ chat.id }}", "{conversation_id}", "${id}", "$id"),
    *("undefined-undefined", "None:None", "none_none", "NULL.NULL", "chat-None", "chat-undefined", "a:b:null", "x.NaN"),
    *("None-", "_undefined", "__CHAT_ID__", "__ID__"),
    *("<id>", "<function id at 0x7f>", "%s", "%d", "%(id)s", "%CHAT_ID%", ":id", ":conversation_id"),
]


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_a_placeholder_is_refused_with_what_to_send_instead(name: str) -> None:
    for choose in (lambda: as_id(name), lambda: check_chosen_name("name", name)):
        with pytest.raises(BadName, match="looks like a placeholder that the client did not fill in") as refused:
            choose()
        assert "Send the client's own id" in str(refused.value)
        assert refused.value.code == "bad_name"


@pytest.mark.parametrize(
    "name",
    [
        *("nullable-1", "none-of-these", "None-1", "nano", "nihil", "trueish", "is-false", "undefined-behaviour"),
        *("a:id", "id", "build:1234", ":1234", "user:none", "0", "1e400", "-1"),
        *("not-null-safe", "build-none-yet", "None-of-it", "__init__", "__A", "A__", "_", "-", "...", ".a", "a..b"),
    ],
)
def test_a_name_that_only_contains_such_a_word_is_fine(name: str) -> None:
    assert as_id(name)[1] == name


def test_an_id_is_an_id_and_other_characters_are_said_to_be_wrong() -> None:
    id = new_id()
    assert as_id(id) == (id, None)
    with pytest.raises(BadName, match="it takes 1 to 128 of the characters"):
        as_id("a b")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_no_address_could_have_is_refused(name: str) -> None:
    with pytest.raises(BadName, match="no address could have it"):
        as_id(name)
