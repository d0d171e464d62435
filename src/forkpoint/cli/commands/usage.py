"""``forkpoint usage``: what was spent in a store, in all. Tests: tests/cli/test_conversations.py."""

from forkpoint.cli import figures
from forkpoint.cli.common import Store
from forkpoint.cli.output import Json, display, facts, print_json
from forkpoint.conversation import Conversations, Spending
from forkpoint.conversation.look import is_there
from forkpoint.events import Usage
from forkpoint.wire.documents import spending_document


def usage(store: Store = None, json: Json = False) -> None:
    """Show what was spent in all.

    Each token is counted once, however many forks share it, and those of deleted conversations too. What chat
    completions without a conversation have spent stands apart as well. A server says what your key's tenant has spent.

    \b
    Example:
      forkpoint usage --json
    """
    spent = _spent(store)
    if json:
        print_json(spending_document(spent.total, spent.beside))
    else:
        rows = [("in all", figures.used(spent.total)), ("of it beside conversations", figures.used(spent.beside))]
        display(facts(rows))


def _spent(store: str | None) -> Spending:
    """What was spent. Nothing if the store does not exist; the store is not made."""
    if not is_there(store):
        return Spending(Usage(), Usage())
    with Conversations(store) as conversations:
        return conversations.usage()
