"""How values look in a notebook: a few lines of HTML, made of nothing but what the value has.

Models, tools and users wrote most of it, so every text is escaped: there are no scripts, no links and no pictures. Long
texts are cut. Tests: tests/conversation/test_notebook.py.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from forkpoint.events import Usage, text_of

if TYPE_CHECKING:
    from forkpoint.backend.results import Branch, Call, Turn

LONGEST = 2_000
"""Characters of a text that are shown."""
MOST = 50
"""Calls of a turn, and branches beside each other, that are shown."""


def turn_html(turn: "Turn") -> str:
    """A turn: what was asked, what its tools did, and the answer."""
    model = turn.steps[-1].model if turn.steps else None
    facts = [turn.outcome.replace("_", " "), model, _calls(turn.usage), _tokens(turn.usage), _dollars(turn.cost)]
    asked = "\n".join(text_of(message) for message in turn.input)
    shown = [_call(call) for call in turn.calls[:MOST]]
    if len(turn.calls) > MOST:
        shown.append(f"<li>{len(turn.calls) - MOST:,} more</li>")
    parts = [
        _head("Turn", facts),
        _block("blockquote", asked),
        f"<ul>{''.join(shown)}</ul>" if shown else "",
        _block("pre", turn.text),
        _block("pre", "" if turn.error is None else f"{turn.error.code}: {turn.error.message}"),
    ]
    return f"<div>{''.join(parts)}</div>"


def tree_html(branches: "Sequence[Branch]") -> str:
    """A family: each conversation with what branched off it."""
    return f"<div>{_head('Conversations of a family', [])}{_list(branches)}</div>"


def conversation_html(name: str, facts: Iterable[str | None], turns: "Sequence[Turn]" = ()) -> str:
    """A conversation: its name, some facts, and its last turns."""
    return f"<div>{_head(f'Conversation {name}', facts)}{''.join(map(turn_html, turns))}</div>"


def _list(branches: "Sequence[Branch]") -> str:
    if not branches:
        return ""
    shown = [f"<li>{_branch(branch)}{_list(branch.branches)}</li>" for branch in branches[:MOST]]
    if len(branches) > MOST:
        shown.append(f"<li>{len(branches) - MOST:,} more</li>")
    return f"<ul>{''.join(shown)}</ul>"


def _branch(branch: "Branch") -> str:
    info = branch.info
    facts = [info.title, info.lineage.kind.replace("_", " "), info.model, f"{info.events:,} events", info.status]
    return f"<code>{_safe(info.name)}</code> {_facts(facts)}"


def _call(call: "Call") -> str:
    return f"<li><code>{_safe(call.tool)}({_safe(call.arguments)})</code> {_safe(call.status)}</li>"


def _head(title: str, facts: Iterable[str | None]) -> str:
    return f"<p><b>{_safe(title)}</b> {_facts(facts)}</p>"


def _facts(facts: Iterable[str | None]) -> str:
    return " · ".join(_safe(fact) for fact in facts if fact)


def _block(tag: str, text: str) -> str:
    return f'<{tag} style="white-space: pre-wrap">{_safe(text)}</{tag}>' if text.strip() else ""


def _safe(text: str) -> str:
    cut = f"… [{len(text) - LONGEST:,} more characters]" if len(text) > LONGEST else ""
    return escape(text[:LONGEST] + cut)


def _calls(usage: Usage) -> str:
    return f"{usage.calls:,} call{'' if usage.calls == 1 else 's'}"


def _tokens(usage: Usage) -> str:
    return f"{usage.input:,} tokens in, {usage.output:,} out"


def _dollars(cost: float | None) -> str:
    return "price not known" if cost is None else f"${cost:.4f}"
