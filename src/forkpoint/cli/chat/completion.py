"""What a line of a chat could become: commands, what they take, and files after @.
Tests: tests/cli/test_chat_input.py."""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping

from forkpoint.cli.chat.commands.slash_command import SlashCommand


def completions(line: str, commands: Mapping[str, SlashCommand]) -> Iterator[str]:
    """The lines that this one could become."""
    name, blank, rest = line[1:].partition(" ")
    if line.startswith("/") and not blank:
        yield from (f"/{one} " for one in commands if one.startswith(name))
    elif line.startswith("/") and name in commands and (found := commands[name].completes) is not None:
        yield from (f"/{name} {one}" for one in found(rest) if one.startswith(rest))
    else:
        before, at, path = line.rpartition("@")
        if at and (not before or before[-1].isspace()) and "\n" not in path:
            yield from (f"{before}@{quoted(one)}" for one in files(path.strip('"')))


def files(start: str) -> Iterable[str]:
    """The files whose path begins so; a folder ends in a slash."""
    found = glob.glob(glob.escape(os.path.expanduser(start)) + "*")
    return sorted(path + "/" if os.path.isdir(path) else path for path in found)


def quoted(path: str) -> str:
    """A path as it is typed after @."""
    return f'"{path}"' if any(character.isspace() for character in path) else path
