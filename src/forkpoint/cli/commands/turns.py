"""``forkpoint retry``, ``resume``, ``approve``, ``deny``, ``discard``, ``ask``, ``condense``: to steer turns."""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec.structs import replace

from forkpoint.agent.agent import Limits
from forkpoint.cli.commands.local import bring_library_for
from forkpoint.cli.common import Allow, Id, Store, Tools, opened
from forkpoint.cli.figures import money, tokens
from forkpoint.cli.options import argument, option
from forkpoint.cli.outcome import Telling
from forkpoint.cli.output import Json, aside, clean, print_json, tell
from forkpoint.conversation import Conversation, Turn
from forkpoint.wire.documents import condensed_document, usage_document

TurnId = Annotated[str | None, option("--turn ID", "Which turn. Default: the last one that did not commit.")]
Calls = Annotated[list[str] | None, argument("CALL", "Which calls. Default: all that wait.")]
By = Annotated[str | None, option("--by NAME", "Who decides; it is recorded.")]


def retry(
    conversation: Id,
    turn: TurnId = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Run a turn that did not commit again.

    The same input is run from the last good state: the model sees nothing of the failed try. What its tools did is not
    undone.

    \b
    Example:
      forkpoint retry build-1234
    """
    _steer(conversation, lambda this: this.retry(turn), store, json, agent=agent, allow=allow)


def resume(
    conversation: Id,
    turn: TurnId = None,
    rerun: Annotated[
        list[str] | None, option("--rerun CALL", "Run this call again though it may have had its effect.")
    ] = None,
    limit_steps: Annotated[int | None, option("--limit-steps N", "Model calls at most.", min=1)] = None,
    limit_tokens: Annotated[int | None, option("--limit-tokens N", "Tokens at most.", min=1)] = None,
    limit_dollars: Annotated[float | None, option("--limit-dollars D", "Dollars at most.")] = None,
    limit_seconds: Annotated[float | None, option("--limit-seconds S", "Seconds at most.")] = None,
    limit_repeats: Annotated[int | None, option("--limit-repeats N", "The same call in a row at most.", min=1)] = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Go on with a turn after its last finished step.

    The turn has failed, was cancelled, or was interrupted when its process died. No tool that has finished runs
    again. A call that was started and has no result is not repeated, unless its tool is repeatable or --rerun names
    it. Limits count what the turn has used already, and hold for this time only.

    \b
    Examples:
      forkpoint resume build-1234
      forkpoint resume build-1234 --limit-steps 200
    """
    given = {"steps": limit_steps, "tokens": limit_tokens, "dollars": limit_dollars, "seconds": limit_seconds}
    given |= {"repeats": limit_repeats}
    limits = {name: value for name, value in given.items() if value is not None}

    def act(this: Conversation) -> Turn:
        return this.resume(turn, rerun=rerun or (), limits=_limits(this, limits))

    _steer(conversation, act, store, json, agent=agent, allow=allow)


def approve(
    conversation: Id,
    calls: Calls = None,
    by: By = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Let calls run that wait for an approval.

    Then the turn goes on. This works from any process, also long after the one that began the turn has ended.

    \b
    Examples:
      forkpoint approve build-1234
      forkpoint approve build-1234 call_7 --by ann
    """
    _steer(conversation, lambda this: this.approve(*(calls or ()), by=by), store, json, agent=agent, allow=allow)


def deny(
    conversation: Id,
    calls: Calls = None,
    reason: Annotated[str | None, option("--reason TEXT", "Why; the model is told.")] = None,
    by: By = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Refuse calls that wait for an approval.

    Then the turn goes on: the model is told, with the reason.

    \b
    Example:
      forkpoint deny build-1234 --reason "not on a Friday" --by ann
    """
    _steer(
        conversation,
        lambda this: this.deny(*(calls or ()), by=by, reason=reason),
        store,
        json,
        agent=agent,
        allow=allow,
    )


def discard(
    conversation: Id,
    turn: Annotated[str | None, option("--turn ID", "Which turn. Default: the open one.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """End an open turn that nobody runs.

    It waits for an approval, or its process has died. The conversation is as it was before that turn. What its tools
    did stays visible, and done.

    \b
    Example:
      forkpoint discard build-1234
    """
    with opened(conversation, store) as this:
        Telling(store=store, as_json=json).ended(this.discard(turn), this.name)


def ask(
    conversation: Id,
    question: Annotated[str, argument("QUESTION", "What you want to know.")],
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Ask a side question, of which nothing is kept.

    It is answered from the history as it is. What it cost is counted. A turn may be running meanwhile.

    \b
    Example:
      forkpoint ask build-1234 "Sum this up in one sentence."
    """
    with opened(conversation, store, bind=True, agent=agent, allow=allow) as this:
        bring_library_for(this, store)
        answer = this.ask(question)
    if json:
        print_json({"text": answer.text, "usage": usage_document(answer.usage)})
    else:
        print(clean(answer.text), flush=True)
        aside(f"{tokens(answer.usage)} · {money(answer.cost)} · not kept")


def condense(
    conversation: Id, agent: Tools = None, allow: Allow = None, store: Store = None, json: Json = False
) -> None:
    """Have the older part of a conversation summed up.

    From then on models are shown the summary instead. All events stay, with their ids. The agent's condenser does it,
    or else its model writes the summary. The conversation must have no open turn.

    \b
    Example:
      forkpoint condense build-1234
    """
    with opened(conversation, store, bind=True, agent=agent, allow=allow) as this:
        bring_library_for(this, store)
        made = this.condense()
    if json:
        print_json(condensed_document(made))
    elif made is None:
        tell("Nothing was condensed: there is nothing to forget, or the summary was of no use.")
    else:
        print(clean(made.summary), flush=True)
        tell(f"All before event {made.kept_from:,} is this now.")


def _steer(
    conversation: str, act: Callable[[Conversation], Turn], store: str | None, json: bool, **options: Any
) -> None:
    """Opens a conversation to run, and tells of the turn that ``act`` runs there."""
    telling = Telling(store=store, as_json=json)
    with opened(conversation, store, bind=True, **options, **telling.options) as this:
        telling.run(this, lambda: act(this))


def _limits(conversation: Conversation, given: dict[str, float]) -> Limits | None:
    """The agent's limits, changed by the given ones; None if no limit is given."""
    if not given:
        return None
    return replace(conversation.agent.limits if conversation.agent is not None else Limits(), **given)
