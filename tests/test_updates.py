from typing import get_args

import forkpoint
from forkpoint import Agent, Conversation, Turn, updates
from forkpoint.backend.callbacks import Update


def test_every_update_of_a_stream_is_imported_from_the_top() -> None:
    for kind in get_args(updates.Provisional):
        assert getattr(forkpoint, kind.__name__) is kind, f"from forkpoint import {kind.__name__}"
        assert kind.__name__ in forkpoint.__all__


def test_an_update_is_provisional_or_the_turn() -> None:
    assert set(get_args(Update)) == {*get_args(updates.Provisional), Turn}
    assert set(get_args(updates.Provisional)) == {
        kind for kind in vars(updates).values() if isinstance(kind, type) and kind.__module__ == updates.__name__
    }


def test_no_two_updates_have_the_same_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(updates.Provisional)]
    assert len(set(tags)) == len(tags), sorted(tags)


def test_one_match_with_names_from_the_top_reads_a_whole_stream() -> None:
    read: list[str] = []
    with (
        Conversation(Agent("scripted/echo"), store="memory:") as conversation,
        conversation.run_stream("Hello") as stream,
    ):
        for update in stream:
            match update:
                case forkpoint.TurnStarted(input=(message,)):
                    read.append(f"began with {len(message.parts)} part")
                case forkpoint.TextPiece(text=text):
                    read.append(text)
                case forkpoint.Answered(called=called):
                    read.append(str(called.finish))
                case Turn(outcome=outcome):
                    read.append(outcome)
                case other:
                    read.append(f"unexpected: {other}")
    assert read == ["began with 1 part", "You said: Hello", "stop", "committed"]
