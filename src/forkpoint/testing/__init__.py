"""Public tools for testing: small events, a clock that a test can move, chosen answers, and suites to pass.

- `samples`, `clock`: small events, and time that a test moves.
- `Script`, `Reply`, `Fault`, `ScriptedCall`: what the model ``scripted/NAME`` answers, and how it fails.
- `model_server`, `simulated_cache`: a model server on loopback that records what it is asked, and a provider's cache.
- `conformance`: the suite that every store must pass. It needs pytest.
"""

from forkpoint.llm.scripts import Fault, Heard, Reply, Script, ScriptedCall
from forkpoint.testing.model_server import ModelServer, Recorded
from forkpoint.testing.simulated_cache import SimulatedCache

__all__ = ["Fault", "Heard", "ModelServer", "Recorded", "Reply", "Script", "ScriptedCall", "SimulatedCache"]
