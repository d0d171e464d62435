"""`Titles`: titles of conversations that a model writes. It is asked aside, so only what it cost is kept.
Tests: tests/cli/test_titles.py."""

from typing import Annotated, TypeAlias

from msgspec import Struct

from forkpoint.cli.answerer.answerer import ModelOptions
from forkpoint.cli.common import opened
from forkpoint.cli.options import option
from forkpoint.cli.output import aside, one_line
from forkpoint.conversation import Conversation
from forkpoint.errors import AnswerMalformed, ForkpointError
from forkpoint.workspace.defaults import default_title_model

TitleModel: TypeAlias = Annotated[
    str | None,
    option(
        "--title-model NAME",
        "A model that gives the conversation a title, if it has none: asked aside, after the turn. "
        "Default: FORKPOINT_TITLE_MODEL, or title_model in your settings.",
    ),
]

LONGEST = 80
"""How many characters a title has at most."""

QUESTION = (
    "Write a title for this conversation, in its language: at most six words that say what it is about. "
    "Answer with the title alone, without quotation marks."
)


class Titles(Struct, frozen=True):
    """Which model writes titles, and in which store. Without a model it is the one of the user's settings, if any."""

    model: str | None
    store: str | None

    def give(self, conversation: Conversation) -> None:
        """Gives a conversation a title if it has none. That it cannot be done is said, and harms nothing."""
        try:
            model = self.model or default_title_model()
            if model is not None and conversation.title() is None:
                write_title(conversation.id, model, self.store)
        except (ForkpointError, KeyboardInterrupt) as error:
            why = error.fact("Command line") if isinstance(error, ForkpointError) else "it was stopped."
            aside(f"{one_line(conversation.name)} has no title: {one_line(why)}")


def write_title(id: str, model: str, store: str | None) -> str:
    """Asks a model for a title of a conversation, and sets it. Raises what asking raises."""
    llm = ModelOptions(model).llm()
    with opened(id, store, bind=True, llm=llm, allow=["model", "tools", "workspace"]) as this:
        title = title_in(answer := this.ask(QUESTION).text)
        if not title:
            raise AnswerMalformed(llm.model, f"it has no title: {one_line(answer, 40)!r}")
        this.describe(title=title)
    return title


def title_in(answer: str) -> str:
    """The title in an answer: its first line with words, without marks around it. Empty if it has no words."""
    lines = (one_line(line).strip("#*_`\"'“”„«» ").removesuffix(".") for line in answer.splitlines())
    return one_line(next((line for line in lines if any(map(str.isalnum, line))), ""), LONGEST)
