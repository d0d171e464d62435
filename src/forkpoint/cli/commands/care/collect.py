"""``forkpoint collect``: what was deleted leaves the disk."""

from typing import Annotated

from forkpoint.cli import figures
from forkpoint.cli.common import Store
from forkpoint.cli.options import option
from forkpoint.cli.output import Json, aside, clean, print_json
from forkpoint.conversation import Collected, Conversations
from forkpoint.conversation.look import is_there, look
from forkpoint.errors import NotFound


def collect(
    dry_run: Annotated[bool, option("--dry-run", "Only say what would be removed.")] = False,
    compact: Annotated[
        bool, option("--compact", "Also write the whole file anew, without gaps. Nobody can write meanwhile.")
    ] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Remove from the disk what was deleted or kept long enough.

    It removes events that no conversation reaches any more, old drafts and idempotency keys, the content of failed and
    cancelled tries, and conversations of the Responses API that nobody named or used for long; what they cost stays
    counted. It also happens by itself: whenever a store is closed, and in a server every few minutes. What has to wait
    until nobody reads the store is told as pending.

    \b
    Examples:
      forkpoint collect --dry-run
      forkpoint collect --compact
    """
    if not is_there(store):
        raise NotFound("store", look(store).address)
    with Conversations(store) as conversations:
        done = conversations.collect(dry_run=dry_run, compact=compact)
    if json:
        print_json(done)
        return
    print(f"{'Would remove' if dry_run else 'Removed'} {_said(done)}.")
    for pending in done.pending:
        aside(f"Pending: {clean(pending.why)}.")


def _said(done: Collected) -> str:
    kinds = (
        (done.events, figures.counted(done.events, "event") + f" ({figures.size(done.payload_bytes)})"),
        (done.turns, figures.counted(done.turns, "turn")),
        (done.drafts, figures.counted(done.drafts, "draft")),
        (done.tries, "the content of " + figures.counted(done.tries, "try", "tries")),
        (done.responses, figures.counted(done.responses, "unnamed conversation")),
        (done.keys, figures.counted(done.keys, "idempotency key")),
    )
    return ", ".join(said for count, said in kinds if count) or "nothing"
