"""Commands about turns: retry, go-on, resume, approve, deny, steer, cancel, discard, ask and condense."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from forkpoint.agent.agent import Limits
from forkpoint.cli.answerer.answerer import Api, ApiKeyEnv, BaseUrl, ModelOptions
from forkpoint.cli.commands.local import bring_library_for
from forkpoint.cli.common import Allow, Id, Store, Tools, opened
from forkpoint.cli.figures import money, tokens
from forkpoint.cli.options import argument, option
from forkpoint.cli.outcome import Telling
from forkpoint.cli.output import Json, aside, clean, print_json, tell
from forkpoint.cli.questions import decision
from forkpoint.cli.questions.decision import ApprovalOptions, ChosenCalls
from forkpoint.cli.questions.project import in_approved_project
from forkpoint.conversation import Conversation, Turn
from forkpoint.wire.documents import condensed_document, usage_document

TurnId = Annotated[str | None, option("--turn ID", "Which turn. Default: the last one that did not commit.")]
NamedCalls = Annotated[list[str] | None, option("--call ID", "Which call; repeatable. Default: all that wait.")]
Digests = Annotated[list[str] | None, option("--digest D", "The digest of the --call before it, as it was shown.")]
By = Annotated[str | None, option("--by NAME", "Who decides; it is recorded.")]


def retry(
    conversation: Id,
    turn: TurnId = None,
    model: Annotated[str | None, option("--model NAME", "Another model answers from here on, such as openai/NAME.")] = (
        None
    ),
    base_url: BaseUrl = None,
    api: Api = None,
    api_key_env: ApiKeyEnv = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Run a turn that did not commit again.

    The same input is run from the last good state: the model sees nothing of the failed try. What its tools did is not
    undone.

    --model lets another model answer: for one that is not there, or that cannot be reached. --base-url, --api and
    --api-key-env say where and how it is asked; without --model they change that of the conversation's own model. The
    turn records the change if it commits.

    \b
    Examples:
      forkpoint retry build-1234
      forkpoint retry build-1234 --model anthropic/claude-sonnet-5
      forkpoint retry build-1234 --base-url http://localhost:8000/v1
    """
    asked = ModelOptions(model, base_url, api, api_key_env)

    def act(this: Conversation) -> Turn:
        return this.retry(turn, model=asked.instead_of(this, store))

    _continue(conversation, act, store, json, agent=agent, allow=allow)


def go_on(
    conversation: Id,
    key: Annotated[str | None, option("--key TEXT", "Do it once: the same key returns the same turn again.")] = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Run a turn without a message, in the middle of what a model was doing.

    The conversation must not end in a finished answer: it was forked or rewound into the middle of a turn, or its last
    turn stopped at a limit. The model goes on from there, with the results that its tools gave. To go on with a turn
    that failed or was interrupted, use `forkpoint resume`.

    \b
    Examples:
      forkpoint fork build-1234 --at 3-12 --name second-try --model openai/gpt-5.6
      forkpoint go-on second-try
    """
    _continue(conversation, lambda this: this.go_on(key=key), store, json, agent=agent, allow=allow)


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

    _continue(conversation, act, store, json, agent=agent, allow=allow)


def approve(
    conversation: Id,
    call: NamedCalls = None,
    digest: Digests = None,
    arguments: Annotated[
        str | None, option("--arguments JSON", "Run the call with these arguments instead. The model is told.")
    ] = None,
    always: Annotated[
        str | None,
        option(
            "--always WHAT",
            "Allow more without a question from now on: call (exactly this one), tool (every call of it), or "
            "prefix:WORDS (shell commands that begin so).",
        ),
    ] = None,
    by: By = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Look at calls that wait for an approval, and let them run.

    Shows what the model says, and each call whole; then asks. Without a terminal, nobody can be asked: name each call
    with the digest of what you saw. Then the turn goes on. This works from any process, also long after the one that
    began the turn has ended.

    \b
    Examples:
      forkpoint approve build-1234
      forkpoint approve build-1234 --call call_7 --by ann
      forkpoint approve build-1234 --call call_7 --digest sha256:dddff1ee...
      forkpoint approve build-1234 --call call_7 --arguments '{"build": 1235}'
      forkpoint approve build-1234 --call call_7 --always "prefix:git status"
    """
    chosen = ChosenCalls(call, digest)
    _continue(
        conversation,
        lambda this: decision.approve(this, chosen, ApprovalOptions(arguments, always, by), store=store, as_json=json),
        store,
        json,
        agent=agent,
        allow=allow,
    )


def deny(
    conversation: Id,
    call: NamedCalls = None,
    digest: Digests = None,
    reason: Annotated[str | None, option("--reason TEXT", "Why; the model is told.")] = None,
    by: By = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Refuse calls that wait for an approval.

    Nobody is asked. Then the turn goes on: the model is told, with the reason.

    \b
    Examples:
      forkpoint deny build-1234 --reason "not on a Friday" --by ann
      forkpoint deny build-1234 --call call_7
    """
    chosen = ChosenCalls(call, digest)
    _continue(conversation, lambda this: decision.deny(this, chosen, by, reason), store, json, agent=agent, allow=allow)


def steer(
    conversation: Id,
    message: Annotated[str, argument("MESSAGE", "What the model is to know.")],
    turn: Annotated[str | None, option("--turn ID", "Only this turn. Default: the open one.")] = None,
    key: Annotated[str | None, option("--key KEY", "An idempotency key: sent twice, it is delivered once.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Send a message to the turn that runs, in whichever process.

    The model gets it with the next tool results. If it has its answer by then, it is asked again. A tool that runs is
    not interrupted. If no turn is open, nothing is sent: run the message as the next turn.

    \b
    Examples:
      forkpoint steer build-1234 "Leave the tests alone."
      forkpoint steer build-1234 "Use Python 3.12." --key k1 --json
    """
    with opened(conversation, store) as this:
        sent = this.steer(message, turn=turn, key=key)
    if json:
        print_json(sent)
        return
    when = "It is delivered with the next tool results."
    if sent.outcome != "running":
        when = f"The turn does not run ({sent.outcome.replace('_', ' ')}): it is delivered when the turn goes on."
    tell(f"Sent to turn {sent.turn}. {'It was delivered.' if sent.delivered else when}")


def cancel(conversation: Id, store: Store = None, json: Json = False) -> None:
    """Cancel the turn that runs, in whichever process.

    It waits until that process has stopped the turn, and shows how the turn ended. The exit status is 1 if the turn was
    faster, and is committed. A turn whose process has died ends as cancelled at once. If its process is stopped or
    hangs, this takes until the process counts as dead: a minute.

    \b
    Example:
      forkpoint cancel build-1234
    """
    with opened(conversation, store) as this:
        turn = this.cancel()
        Telling(store=store, as_json=json).ended(turn, this.name)
    if turn.outcome != "cancelled":
        raise typer.Exit(1)


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
        answer = in_approved_project(lambda: this.ask(question), this.workspace, store, asks=not json)
    if json:
        print_json({"text": answer.text, "usage": usage_document(answer.usage)})
    else:
        print(clean(answer.text), flush=True)
        aside(f"{tokens(answer.usage)} · {money(answer.cost)} · not kept")


def condense(
    conversation: Id,
    focus: Annotated[str | None, option("--focus TEXT", "What the summary should look at above all.")] = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Have the older part of a conversation summed up.

    From then on models are shown the summary instead. All events stay, with their ids. The agent's condenser does it,
    or else its model writes the summary. The conversation must have no open turn.

    \b
    Examples:
      forkpoint condense build-1234
      forkpoint condense build-1234 --focus "What was tried, and why it did not work."
    """
    with opened(conversation, store, bind=True, agent=agent, allow=allow) as this:
        bring_library_for(this, store)
        made = this.condense(focus=focus)
    if json:
        print_json(condensed_document(made))
    elif made is None:
        tell("Nothing was condensed: there is nothing to forget, or the summary was of no use.")
    else:
        print(clean(made.summary), flush=True)
        tell(f"All before event {made.kept_from:,} is this now.")


def _continue(
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
