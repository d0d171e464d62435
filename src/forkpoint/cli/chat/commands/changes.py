"""Commands of a chat that change the conversation, or write it out: model, title, compact, export.
Tests: tests/cli/test_chat_commands.py."""

import os
from collections.abc import Iterable

from forkpoint.cli import figures
from forkpoint.cli.answerer.answerer import ModelOptions
from forkpoint.cli.chat.commands.slash_command import Answer, Refused, SlashCommand, WrongUse
from forkpoint.cli.chat.completion import files
from forkpoint.cli.chat.session import Session
from forkpoint.cli.commands.local import bring_library_for
from forkpoint.cli.output import clean, one_line
from forkpoint.wire.documents import condensed_document, plain
from forkpoint.workspace.defaults import default_model

_FORMATS = {"--md": ("md", "md"), "--jsonl": ("forkpoint", "jsonl")}


def change_commands(session: Session) -> tuple[SlashCommand, ...]:
    """The commands."""
    does = _Changes(session)
    return (
        SlashCommand("model", "[NAME]", "show the model, or go on with another one", does.model, does.models),
        SlashCommand("title", "[TEXT]", "show the title, or give another one", does.title),
        SlashCommand("compact", "[TEXT]", "have the older part summed up; TEXT says what to look at", does.compact),
        SlashCommand(
            "export", "[FILE] [--md]", "write the conversation into a file, with --md for people", does.export, files
        ),
    )


class _Changes:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = session.screen

    def models(self, start: str) -> Iterable[str]:
        """Names of models, for completion."""
        return sorted({default_model(), "local/smollm2", "openai/", "anthropic/"})

    def model(self, name: str) -> Answer:
        this = self._session.this
        if name and this.agent is None:
            raise Refused("The server says who answers here; /fork there, or begin a conversation with another agent")
        if name and this.agent is not None:
            this.change_agent(this.agent.replace(llm=ModelOptions(name).llm()))
            bring_library_for(this, self._session.store)
        has = this.agent.llm.model if this.agent is not None else this.info().model
        self._screen.say(f"{one_line(has or 'nobody')} answers{' from here on' if name else ''}.")
        return {"conversation": this.id, "model": has}

    def title(self, text: str) -> Answer:
        this = self._session.this
        if text:
            this.describe(title=text)
        title = this.title()
        self._screen.say(
            f"The title is: {one_line(title)}" if title else "There is no title yet: /title TEXT gives one."
        )
        return {"conversation": this.id, "title": title}

    def compact(self, focus: str) -> Answer:
        made = self._session.run(lambda: self._session.this.condense(focus=focus or None))
        self._screen.end_line()
        if made is None:
            self._screen.say("Nothing was condensed: there is nothing to forget, or the summary was of no use.")
        else:
            self._screen.out.print(clean(made.summary))
            self._screen.say(f"All before event {made.kept_from:,} is this now, for the model; /turns has it all.")
        return {"condensed": plain(condensed_document(made))}

    def export(self, given: str) -> Answer:
        words = given.split()
        chosen = [word for word in words if word in _FORMATS]
        paths = [word for word in words if word not in _FORMATS]
        if len(paths) > 1 or len(chosen) > 1 or any(path.startswith("-") for path in paths):
            raise WrongUse
        named_md = bool(paths) and paths[0].endswith(".md")
        format, ending = _FORMATS[chosen[0] if chosen else "--md" if named_md else "--jsonl"]
        path = os.path.expanduser(paths[0]) if paths else f"{self._session.this.name}.{ending}"
        if os.path.exists(path):
            raise Refused(f"{path} is there already: name another file")
        try:
            report = self._session.this.export(path, format=format)
        except OSError as error:
            raise Refused(f"{path} cannot be written: {error.strerror or error}") from None
        self._screen.say(f"{path}: {figures.size(report.bytes)}")
        return {"file": path, "format": format, "bytes": report.bytes}
