"""Commands of a chat that go to other branches, and compare them.
Tests: tests/cli/test_chat.py, tests/cli/test_chat_commands.py."""

from collections.abc import Iterable

from forkpoint.cli import figures
from forkpoint.cli.chat.commands.slash_command import Answer, Refused, SlashCommand, WrongUse
from forkpoint.cli.chat.session import Session
from forkpoint.cli.chat.turn_watch import asked
from forkpoint.cli.commands.branches.diff import drawn
from forkpoint.cli.commands.branches.tree import draw, origin, stats_of, turns_back, walk
from forkpoint.cli.common import listed, newest_turns, opened, short_names
from forkpoint.cli.output import one_line
from forkpoint.cli.questions.choice import choose
from forkpoint.cli.recent import conversation_rows
from forkpoint.conversation import Info
from forkpoint.errors import NotFound
from forkpoint.wire.branches import diff_document
from forkpoint.wire.documents import info_document, plain

_MOST = 50  # rows of a list to pick from


def branch_commands(session: Session) -> tuple[SlashCommand, ...]:
    """The commands."""
    does = _Branches(session)
    return (
        SlashCommand("fork", "[TITLE]", "go on in a fork; this conversation stays as it is", does.fork),
        SlashCommand(
            "switch", "[CONVERSATION]", "go to another conversation; without one, pick it", does.switch, does.names
        ),
        SlashCommand("rewind", "[N]", "go back N turns, or pick where to; what stood there is kept", does.rewind),
        SlashCommand(
            "keep", "[BRANCH]", "go on from the head of a branch, in this conversation", does.keep, does.names
        ),
        SlashCommand("diff", "[BRANCH]", "show how a branch differs from this conversation", does.diff, does.names),
        SlashCommand("tree", "", "show its family: forks, and what was set aside", does.tree),
    )


class _Branches:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = session.screen

    def names(self, start: str) -> Iterable[str]:
        """The names of conversations, for completion."""
        found = listed(self._session.store, limit=1000, order="used").items
        return [info.name for info in found if info.id != self._session.this.id]

    def fork(self, title: str) -> Answer:
        session, source = self._session, self._session.this
        session.go_to(source.fork(title=title or None, callbacks=[session.watch]))
        self._screen.say(f"This is the fork {session.this.name} now. Back: /switch {source.name}")
        return {"conversation": session.this.id, "name": session.this.name, "source": source.id}

    def switch(self, given: str) -> Answer:
        session, before = self._session, self._session.this.name
        if not given:
            others = [
                info
                for info in listed(session.store, limit=_MOST, order="used", glance=True).items
                if info.name != before
            ]
            given = self._pick("Go to which conversation?", others, conversation_rows(others)) or ""
            if not given:
                return self._stays()
        session.switch(given)
        self._screen.say(f"Back: /switch {before}")
        if self._screen.is_watched and session.is_waiting and (turn := session.this.open_turn()) is not None:
            return session.ran(turn)
        return {"conversation": session.this.id, "name": session.this.name}

    def rewind(self, given: str) -> Answer:
        if given and not (given.isascii() and given.isdigit() and int(given)):
            raise WrongUse
        this, number = self._session.this, int(given or 1)
        if not given and self._screen.is_watched:
            turns = newest_turns(this, _MOST, committed=True)[::-1]
            picked = choose(self._screen.out, "Go back to before which message?", [asked(turn) for turn in turns])
            if picked is None:
                return self._stays()
            number = picked + 1
        aside = this.rewind(before=turns_back(this, number))
        kept = None
        if aside is not None:
            with aside:
                kept = aside.id
            self._screen.say(f"Back by {figures.counted(number, 'turn')}. What stood there is kept: /switch {kept}")
        return {"conversation": this.id, "aside": kept}

    def keep(self, given: str) -> Answer:
        this = self._session.this
        given = given or self._branch("Go on from the head of which branch?")
        if not given:
            return self._stays()
        with opened(given, self._session.store, bind=True) as branch:
            name, aside = branch.name, this.keep(branch)
        kept = None
        if aside is not None:
            with aside:
                kept = aside.id
        undo = "" if kept is None else f" What stood here is kept; to undo it: /keep {kept}"
        self._screen.say(f"This conversation stands where {name} stands.{undo}")
        return {"conversation": this.id, "branch": name, "aside": kept}

    def diff(self, given: str) -> Answer:
        given = given or self._branch("Compare with which branch?")
        if not given:
            return self._stays()
        with opened(given, self._session.store) as other:
            found = self._session.this.diff(other)
        for part in drawn(found, self._screen.out.width):
            self._screen.out.print(part)
        return {"diff": plain(diff_document(found))}

    def tree(self, _: str) -> Answer:
        session = self._session
        branches = session.this.tree() if session.is_kept else ()
        if not branches:
            self._screen.say("Nothing was said yet.")
        self._screen.out.print(draw(branches, here=session.this.id, stats=stats_of(branches, session.store)))
        return {"branches": [plain(info_document(info)) | {"depth": depth} for info, depth in walk(branches)]}

    # Picking.

    def _branch(self, question: str) -> str:
        """A branch of the family that somebody picks; "" if none."""
        this = self._session.this
        family = [info for info, _ in walk(this.tree() if self._session.is_kept else ())]
        others = [info for info in family if info.id != this.id and info.lineage.kind in {"root", "fork", "aside"}]
        if not others:
            raise Refused("This conversation has no other branches")
        names = short_names(family)
        told = [(names[info.id], one_line(info.title or "", 40), origin(info)) for info in others]
        return self._pick(question, others, [" · ".join(filter(None, parts)) for parts in told]) or ""

    def _pick(self, question: str, infos: list[Info], rows: list[str]) -> str | None:
        """The id of the conversation that somebody picks. Where nobody can, the command has to name it."""
        if not self._screen.is_watched:
            raise WrongUse
        if not infos:
            raise NotFound("conversation", "another one")
        picked = choose(self._screen.out, question, rows)
        return None if picked is None else infos[picked].id

    def _stays(self) -> Answer:
        self._screen.say("Nothing was changed.")
        return {"conversation": self._session.this.id}
