"""The agent that each node offers. Only nodes import this module: their environment says where model and file are."""

import os

from forkpoint import LLM, Agent, tool

MODEL = "CLUSTER_MODEL"
"""The variable with the address of the model."""

LOG = "CLUSTER_LOG"
"""The variable with the file that the tool writes to."""


@tool
def note(line: str) -> str:
    """Notes a line down."""
    written = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(written, f"{line}\n".encode())  # one write: lines of several nodes do not mix
    finally:
        os.close(written)
    return f"noted {line}"


WORKER = Agent(
    LLM(
        "openai/scripted",
        api="chat",
        base_url=os.environ.get(MODEL, "http://127.0.0.1"),
        api_key_env="CLUSTER_MODEL_KEY",
    ),
    tools=[note],
    name="worker",
)
