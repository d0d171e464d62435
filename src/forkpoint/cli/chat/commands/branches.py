"""Commands of a chat that go to other branches: fork, switch, rewind, tree. Tests: tests/cli/test_chat.py."""

from forkpoint.cli import figures
from forkpoint.cli.chat.commands.slash_command import Answer, SlashCommand, WrongUse
from forkpoint.cli.chat.session import Session
from forkpoint.cli.commands.branches.tree import draw, stats_of, turns_back, walk
from forkpoint.wire.documents import info_document, plain


def branch_commands(session: Session) -> tuple[SlashCommand, ...]:
    """The commands."""
    does = _Branches(session)
    return (
        SlashCommand("fork", "[TITLE]", "go on in a fork; this conversation stays as it is", does.fork),
        SlashCommand("switch", "CONVERSATION", "go to another conversation, by its name or id", does.switch),
        SlashCommand("rewind", "[N]", "go back N turns, by default one; what stood there is kept", does.rewind),
        SlashCommand("tree", "", "show its family: forks, and what was set aside", does.tree),
    )


class _Branches:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = session.screen

    def fork(self, title: str) -> Answer:
        session, source = self._session, self._session.this
        session.go_to(source.fork(title=title or None, callbacks=[session.watch]))
        self._screen.say(f"This is the fork {session.this.name} now. Back: /switch {source.name}")
        return {"conversation": session.this.id, "name": session.this.name, "source": source.id}

    def switch(self, given: str) -> Answer:
        if not given:
            raise WrongUse
        session, before = self._session, self._session.this.name
        session.switch(given)
        self._screen.say(f"Back: /switch {before}")
        if self._screen.is_watched and session.is_waiting and (turn := session.this.open_turn()) is not None:
            return session.ran(turn)
        return {"conversation": session.this.id, "name": session.this.name}

    def rewind(self, given: str) -> Answer:
        if given and not (given.isascii() and given.isdigit() and int(given)):
            raise WrongUse
        number, this = int(given or 1), self._session.this
        aside = this.rewind(before=turns_back(this, number))
        kept = None
        if aside is not None:
            with aside:
                kept = aside.id
            self._screen.say(f"Back by {figures.counted(number, 'turn')}. What stood there is kept: /switch {kept}")
        return {"conversation": this.id, "aside": kept}

    def tree(self, _: str) -> Answer:
        session = self._session
        branches = session.this.tree() if session.is_kept else ()
        if not branches:
            self._screen.say("Nothing was said yet.")
        self._screen.out.print(draw(branches, here=session.this.id, stats=stats_of(branches, session.store)))
        return {"branches": [plain(info_document(info)) | {"depth": depth} for info, depth in walk(branches)]}
