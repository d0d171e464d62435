"""``forkpoint request``: what was sent or would be, beside the request before it."""

from pathlib import Path

import pytest
from tests.cli.program import Program, agent

from forkpoint import Conversation
from forkpoint.events import Usage
from forkpoint.testing import Reply


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def talk(forkpoint: Program, script: str) -> Conversation:
    said = [
        Reply("One.", usage=Usage(calls=1, input=100, output=1)),
        Reply("Two.", usage=Usage(calls=1, input=200, cached=150, output=1)),
    ]
    made = Conversation(agent(script, *said, instructions="You count."), conversation_id="it", store=forkpoint.store)
    made.run("First?")
    made.run("Second?")
    return made


def facts(shown: str) -> dict[str, str]:
    rows = [line.partition("  ") for line in shown.splitlines()]
    return {name: value.strip() for name, _, value in rows}


def test_request_says_what_was_sent_last_and_how_much_of_it_was_cached(forkpoint: Program) -> None:
    with talk(forkpoint, "sent") as made:
        seen, key = made.request(), made.cache().key
    said = facts(forkpoint.text("request", "it"))
    assert said["cache key"] == f"{key}, its own"
    assert said["prompt"] == f"4 blocks, {seen.bytes} bytes"
    assert said["shared"].startswith(f"2 of 4 blocks, {seen.shared_bytes} bytes (")
    assert said["why"] == "it continues the request before it"
    assert said["cached"] == "75 % of its tokens"
    assert said["tokens"] == "200, counted by the provider"
    assert said["price"] == "$0 with a warm cache, $0 with a cold one, without the answer"


def test_request_says_what_a_message_would_send_and_sends_nothing(forkpoint: Program) -> None:
    with talk(forkpoint, "next") as made:
        seen = made.request("Third?")
    said = facts(forkpoint.text("request", "it", "Third?"))
    assert said["prompt"] == f"6 blocks, {seen.bytes} bytes"
    assert said["cached"] == "not known"
    assert said["tokens"] == f"about {seen.tokens}, {seen.tokens_how}"
    assert said["tokens"].endswith("as in the request before it")
    assert forkpoint.json("show", "it")["stats"]["spent"]["calls"] == 2


def test_request_of_a_turn_is_what_that_turn_sent(forkpoint: Program) -> None:
    with talk(forkpoint, "turn") as made:
        first = made.turns().items[0].id
    said = facts(forkpoint.text("request", "it", "--turn", first))
    assert (said["prompt"].split(",")[0], said["why"]) == ("2 blocks", "there is no request before it")
    assert said["cached"] == "0 % of its tokens"
    unknown = forkpoint.run("request", "it", "--turn", made.id)
    assert (unknown.returncode, "has no turn to show" in unknown.stderr) == (1, True)


def test_the_body_is_printed_byte_for_byte(forkpoint: Program) -> None:
    with talk(forkpoint, "body") as made:
        body = made.request("Ünd\x9bso?").body
    assert forkpoint.text("request", "it", "Ünd\x9bso?", "--body") == body


def test_the_diff_shows_the_blocks_that_are_new(forkpoint: Program) -> None:
    talk(forkpoint, "diff").close()
    assert forkpoint.text("request", "it", "Third?", "--diff").splitlines() == [
        "  4 blocks in common",
        '+ {"role":"assistant","content":"Two."}',
        '+ {"role":"user","content":"Third?"}',
    ]


def test_request_is_a_document_for_programs(forkpoint: Program) -> None:
    with talk(forkpoint, "document") as made:
        made.fork(conversation_id="fork", cache="inherit").close()
    document = forkpoint.json("request", "fork", "Third?")
    assert (document["blocks"], document["shared"], document["cached"]) == (6, 4, None)
    assert document["key_inherited_from"] == made.id
    assert [line["change"] for line in document["lines"]] == ["kept"] * 4 + ["added"] * 2


def test_a_key_that_is_inherited_says_from_whom(forkpoint: Program) -> None:
    with talk(forkpoint, "inherited") as made:
        made.fork(conversation_id="fork", cache="inherit").close()
        key = made.cache().key
    assert facts(forkpoint.text("request", "fork", "Third?"))["cache key"] == f"{key}, inherited from it"


def test_request_refuses_what_makes_no_sense(forkpoint: Program) -> None:
    talk(forkpoint, "refused").close()
    assert forkpoint.run("request", "it", "Third?", "--turn", "x").returncode == 2
    assert forkpoint.run("request", "it", "--body", "--diff").returncode == 2
    with Conversation.open("silent", create=agent("silent"), store=forkpoint.store):
        pass
    silent = forkpoint.run("request", "silent")
    assert (silent.returncode, "no model was asked yet" in silent.stderr) == (1, True)


def test_request_of_a_fork_with_another_model_says_that_the_model_changed(forkpoint: Program) -> None:
    with talk(forkpoint, "model") as made:
        made.fork(conversation_id="fork", agent=agent("echo", instructions="You count.")).close()
    said = facts(forkpoint.text("request", "fork", "Third?"))
    assert "the manifest changed: model" in said["why"]


def test_request_of_a_fork_with_a_key_of_its_own_says_that_the_key_is_another(forkpoint: Program) -> None:
    with talk(forkpoint, "key") as made:
        source = made.cache().key
        with made.fork(conversation_id="fork") as fork:
            own = fork.cache().key
    said = facts(forkpoint.text("request", "fork", "Third?"))
    assert f"the cache key is {own}, it was {source}" in said["why"]
