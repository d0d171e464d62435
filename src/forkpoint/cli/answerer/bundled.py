"""The model in the box, as the program asks it: told how to answer, without chance, and for a short answer.

A model this small says nonsense if it is told nothing. So the agent that the program makes of it has instructions, a
temperature and a limit, and they are stored with the conversation, where everybody can see them. `Agent` and `LLM` in
Python add nothing of the kind: there an agent is what its writer says. Tests: tests/cli/test_bundled.py.
"""

from forkpoint.agent.agent import Agent
from forkpoint.llm.model import LLM
from forkpoint.workspace.defaults import MODEL

INSTRUCTIONS = (
    "You are a helpful assistant. You answer in one short sentence, in plain words, and you say only what you are sure "
    "of. You never make a list, and you do not repeat the question."
)

MAX_TOKENS = 256

INTRODUCTION = (
    f"{MODEL} is a small model of 135 million parameters that runs on this machine, and is often wrong. For real work: "
    "--model openai/NAME, --model anthropic/NAME, or any other (docs/recipes.md)."
)
"""What somebody should know who has just begun to talk to it."""


def agent_of(llm: LLM, instructions: str | None) -> Agent:
    """An agent that is little more than a model. The model in the box gets what it needs, unless that is said."""
    if llm == LLM(MODEL):
        llm = llm.replace(temperature=0.0, max_tokens=MAX_TOKENS)
        instructions = INSTRUCTIONS if instructions is None else instructions
    return Agent(llm, instructions=instructions or "")


def is_bundled(agent: Agent | None) -> bool:
    """Whether an agent's model is the one in the box."""
    return agent is not None and agent.llm.model == MODEL
