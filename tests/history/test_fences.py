"""Code fences around a whole answer."""

import pytest

from forkpoint.history.fences import unfenced


@pytest.mark.parametrize(
    "text",
    ['```json\n{"a": 1}\n```', '```\n{"a": 1}\n```', '\n ```JSON  \r\n{"a": 1}\r\n```\n\n', '```json\n{"a": 1}```'],
)
def test_a_fence_around_all_of_a_text_is_taken_off(text: str) -> None:
    assert unfenced(text).strip() == '{"a": 1}'


def test_backticks_within_the_json_are_part_of_it() -> None:
    assert unfenced('```json\n{"a": "```x```"}\n```') == '{"a": "```x```"}\n'


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        'Here:\n```json\n{"a": 1}\n```',
        '```json\n{"a": 1}\n```\nDone.',
        '```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```',
        '```json {"a": 1}```',
        "```",
        "``````",
        "```\n",
        '```two words\n{"a": 1}\n```',
        '```json\n{"a": 1}',
        "",
        " \n",
    ],
)
def test_any_other_text_is_left_as_it_is(text: str) -> None:
    assert unfenced(text) == text
