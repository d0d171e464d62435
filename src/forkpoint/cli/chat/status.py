"""The line above the prompt of a chat: where one is, and what it has cost so far. Tests: tests/cli/test_chat.py."""

from forkpoint.cli import figures
from forkpoint.cli.output import one_line
from forkpoint.conversation import Conversation, Info, Turn


def status_line(conversation: Conversation) -> str | None:
    """The conversation, its model, the tokens of its context, their cached share, what all of it has cost.

    None before the first turn that has asked a model.
    """
    turn = conversation.last_turn(committed=True)
    if turn is None or not turn.steps:
        return None
    info, usage = conversation.info(), turn.steps[-1].usage
    told = [_name(info), one_line(info.model or "", 40), _context(conversation, turn)]
    if usage.input:
        told.append(f"{figures.share(usage)} cached")
    told.append(f"{figures.money(conversation.stats().cost)} in all")
    return " · ".join(part for part in told if part)


def _name(info: Info) -> str:
    name = info.id[:13].rstrip("-") if info.name == info.id else info.name
    kind = {"fork": "fork ", "aside": "set aside "}.get(info.lineage.kind, "")
    return f"{kind}{one_line(name, 40)}"


def _context(conversation: Conversation, turn: Turn) -> str:
    """How much of what the model can read is taken, after the last call of a turn."""
    usage = turn.steps[-1].usage
    taken = usage.input + usage.output
    limit = None if conversation.agent is None else conversation.agent.llm.context_tokens
    if not taken:
        return ""
    return f"{taken:,} of {limit:,} tokens" if limit else f"{figures.counted(taken, 'token')} of context"
