"""``forkpoint bring``: what a branch has said becomes part of another one. Tests: tests/cli/test_diff.py."""

from typing import Annotated

from forkpoint.cli import figures
from forkpoint.cli.common import Allow, Id, Store, Tools, opened
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, clean, print_json
from forkpoint.events import BroughtAs
from forkpoint.wire.branches import brought_document


def bring(
    conversation: Id,
    branch: Annotated[
        str, argument("BRANCH", "A branch of the same family: its name, its id, or the start of its id.")
    ],
    what: Annotated[
        BroughtAs,
        option("--what WHAT", "answer, with what was asked; summary, which a model writes; or turns, as copies."),
    ] = "answer",
    key: Annotated[str | None, option("--key KEY", "Sent again with the same key, it is brought once.")] = None,
    agent: Tools = None,
    allow: Allow = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Bring an answer, a summary or turns from a branch.

    What the branch has said since the two part is added to the conversation, as a note that says where it came from:
    its last answer, a summary of it all, or copies of its turns. What the branch has cost stays with the branch.

    \b
    Examples:
      forkpoint bring build-1234 try-2
      forkpoint bring build-1234 try-2 --what summary
      forkpoint bring build-1234 try-2 --what turns --json
    """
    this = opened(conversation, store, bind=what == "summary", agent=agent, allow=allow)
    with this, opened(branch, store) as source:
        done = this.bring(source, what, key=key)
    if json:
        print_json(brought_document(done))
        return
    if what == "turns":
        left_out = f", {figures.counted(done.left_out, 'exchange')} left out" if done.left_out else ""
        print(f"Brought {figures.counted(len(done.events) - 1, 'event')} from {done.source}{left_out}.")
    else:
        print(clean(done.text))
        if done.usage:
            print(f"\n{figures.used(done.usage)}")
