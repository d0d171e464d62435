"""The worked example of docs/chat.md, as its table has it: each list is sent, and each column compared."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.chat.lists_of_messages import FULL, Chat, Message, answer, assistant, chatting, user

PAGE = Path(__file__).parents[3] / "docs" / "chat.md"


def rows() -> list[list[str]]:
    table = PAGE.read_text().partition("| the user | the list |")[2].partition("\n\n")[0]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with chatting("worked-example", headers=FULL) as running:
        yield running


def test_the_worked_example_is_as_it_was_run(chat: Chat) -> None:
    said: dict[str, str] = {}  # by the sign of the table: a letter is the user's, a number ours

    def signs(lines: list[str]) -> str:
        known = {text: sign for sign, text in said.items()}
        words = [line.partition(": ")[2] for line in lines if line.startswith(("user", "assistant"))]
        return " ".join(known[word] for word in words)

    def message(sign: str) -> Message:
        if sign[0].isalpha():
            said.setdefault(sign, f"Question {sign}")
            return user(said[sign])
        said.setdefault(sign, f"Somebody's {sign}")  # an answer that was edited; all others are known
        return assistant(said[sign])

    assert len(rows()) == 11
    for what, listed, gets, number, status, points_to in rows():
        response = chat.post([message(sign) for sign in listed.split()], "example")
        said[number] = answer(response)["content"]
        assert chat.model is not None
        assert signs(chat.model.heard) == gets, what
        assert response.headers["X-Conversation-Status"] == status, what
        assert signs(chat.history("example")) == points_to, what
        is_apart = points_to.split()[-1] != number
        assert ("X-Conversation-Branch" in response.headers) == is_apart, what
    assert re.search(r"Nothing is lost", PAGE.read_text())
    kept = {signs(lines) for lines in chat.everything("example").values()}
    assert {"A 1 B 3 C 4", "A' 5 D 6", "A 1 B 2 E 7 F 8", "T 10", "A 1 B 2 E 7' G 9 H 11"} <= kept
