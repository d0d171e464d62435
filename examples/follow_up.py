"""A CI run is evidence: whoever asks about it later asks in a fork, and the run stays byte for byte as it was.

Run it with `./run python examples/follow_up.py`. It needs no key and no network.
"""

import tempfile
from pathlib import Path

from forkpoint import Agent, Conversation, ToolContext, tool
from forkpoint.testing import Reply, Script, ScriptedCall, SimulatedCache

LOG = "\n".join([f"test_{n:02} passed in 0.{n} s" for n in range(40)] + ["test_upload FAILED: no answer in 30 s"])


@tool
def read_log(ctx: ToolContext, build: int) -> str:
    """Reads the log of a build."""
    assert ctx.workspace is not None
    return (ctx.workspace / f"{build}.log").read_text()


# What the model says is written down here, so that you get the same story; the cache behaves like a provider's.
# "local/smollm2", "openai/NAME" or "anthropic/NAME" go in the same place.
MODEL = Script(
    [
        Reply(calls=(ScriptedCall("read_log", '{"build": 1234}'),)),
        Reply("test_upload failed: the server did not answer within 30 s."),
        Reply(calls=(ScriptedCall("read_log", '{"build": 1233}'),)),
        Reply("No: in build 1233 it passed. Something changed in between."),
    ],
    cache=SimulatedCache(minimum=64, granularity=16),
).register("ci")

AGENT = Agent(MODEL, instructions="You explain why builds fail.", tools=[read_log], name="ci")


def ci(store: Path, builds: Path) -> str:
    """What CI does: it runs the agent, and keeps a digest elsewhere that vouches for all of it."""
    labels = {"kind": "ci", "build": "1234"}
    with Conversation(AGENT, conversation_id="build-1234", workspace=builds, store=store, tags=labels) as run:
        turn = run.run("Build 1234 failed. Why?")
        print(f"build-1234: {turn.text}")
        return run.info().digest


def human(store: Path, digest: str) -> None:
    """What somebody does a day later, in another process: she asks on, where the run ended."""
    with Conversation.open("build-1234", agent=AGENT, store=store) as run:
        events, spent = run.events(), run.stats().spent

        with run.fork(conversation_id="was-it-new", title="Was it new?", tags={"by": "ana"}, cache="inherit") as fork:
            turn = fork.run("Did it fail in the build before, too?")
            print(f"was-it-new: {turn.text}")

            first = turn.steps[0].usage
            print(f"its first request: {first.cached} of {first.input} tokens were in the provider's cache")
            asked = run.last_turn()
            assert asked is not None
            assert first.cached > 0.9 * asked.steps[-1].usage.input
            assert fork.events()[: len(events)] == events  # the same events with the same ids, not a copy
            assert fork.info().lineage.source == run.id

        # The run: the same events, the same bytes, the same cost. The digest vouches for it, from outside the store.
        assert run.events() == events
        assert run.stats().spent == spent
        assert run.info().digest == digest
        assert run.verify(head_digest=digest).ok
        print(f"the run:    {len(events)} events as before, digest {digest[:12]}, verified")
        print(f"in all:     {run.stats().family.calls} calls of a model, each counted once")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, builds = Path(folder) / "forkpoint.db", Path(folder)
        (builds / "1234.log").write_text(LOG)
        (builds / "1233.log").write_text(LOG.replace("FAILED: no answer in 30 s", "passed in 2.1 s"))
        human(store, ci(store, builds))


if __name__ == "__main__":
    main()
