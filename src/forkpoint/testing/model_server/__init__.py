"""The recording model server: a scripted model for any client, over real HTTP.

`ModelServer` speaks OpenAI's Chat Completions and Responses, and Anthropic's Messages, streamed and whole. A `Script`
says what it answers, and how it fails; it records what it is asked, byte for byte::

    with ModelServer(Script([Reply("Hello")])) as server:
        client = openai.OpenAI(base_url=server.url, api_key="any")
        ...
        assert server.last.key == "the key that should have been sent"

``python -m forkpoint.testing.model_server`` runs one as a process.
"""

from forkpoint.testing.model_server.recording import Recorded
from forkpoint.testing.model_server.server import ModelServer

__all__ = ["ModelServer", "Recorded"]
