"""Which agent answers better? Fork one point for each of them, ask the same, and compare; the source is not touched.

Run it with `./run python examples/compare_agents.py`. It needs no key and no network: the model is in the box.
"""

from forkpoint import LLM, Agent, Conversation

# A real small model. "openai/NAME" or "anthropic/NAME" go in the same place, and each agent may have another.
MODEL = LLM("local/smollm2", max_tokens=16, temperature=0)

PLAIN = "You answer in one short sentence, and you are kind. " * 8
POET = "You are a poet. You answer in verse. " * 8

TODAY = Agent(MODEL, instructions=PLAIN, name="today")
VERSE = Agent(MODEL, instructions=POET, name="verse")


def main() -> None:
    with Conversation(TODAY, store="memory:", title="The sea") as source:
        source.run("What is the sea?")
        before = source.info(), source.events(), source.stats().spent

        print(f"{'agent':8}{'prompt':>7}{'cached':>8}{'answer':>8}   Why is it salty?")
        for agent in (TODAY, VERSE):
            with source.fork(agent=agent, title=f"As {agent.name}", cache="inherit") as fork:
                turn = fork.run("Why is it salty?")
                used = turn.usage
                share, said = f"{used.cached / used.input:.0%}", " ".join(turn.text.split())
                print(f"{agent.name:8}{used.input:7}{share:>8}{used.output:8}   {said[:76]}")

                # Instructions stand before all history. With others, nothing that follows them can be found in the
                # cache, so the fork gives the inherited key up. (Another temperature would cost nothing of it.)
                if agent.manifest == TODAY.manifest:
                    assert used.cached > 0.8 * used.input
                    assert fork.cache().key == source.cache().key
                else:
                    assert used.cached < 0.2 * used.input
                    assert fork.cache().key != source.cache().key

        assert (source.info(), source.events(), source.stats().spent) == before
        (root,) = source.tree()
        print(f"{root.info.title}: {root.info.events} events, as before, and {len(root.branches)} branches beside it")


if __name__ == "__main__":
    main()
