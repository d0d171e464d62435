"""Conversations in a list to pick from: the last used first. Tests: tests/cli/test_chat_commands.py."""

from collections.abc import Iterable

from forkpoint.cli import figures
from forkpoint.cli.common import short_names
from forkpoint.cli.output import one_line
from forkpoint.conversation import Info


def conversation_rows(infos: Iterable[Info]) -> list[str]:
    """What is shown of each conversation: its name, what it is about, and when it was used last."""
    infos = list(infos)
    names = short_names(infos)
    return [
        " · ".join(filter(None, (names[info.id], one_line(_about(info), 50), figures.ago(info.updated))))
        for info in infos
    ]


def _about(info: Info) -> str:
    """Its title, else its first words."""
    return info.title or (info.glance.opening if info.glance is not None else "")
