"""What all calls of a server share."""

from dataclasses import dataclass

from forkpoint.server.agents import Agents
from forkpoint.server.chat.service import Chat
from forkpoint.server.keys import Keyring
from forkpoint.server.metrics import Metrics
from forkpoint.server.settings import ServerSettings
from forkpoint.server.tenants import Tenants
from forkpoint.server.turns import Turns
from forkpoint.server.watching import Watching


@dataclass(frozen=True)
class Services:
    """The parts of a server that runs."""

    settings: ServerSettings
    agents: Agents
    keyring: Keyring | None  # None: everybody is the default tenant, and only loopback is listened on
    tenants: Tenants
    turns: Turns
    watching: Watching
    metrics: Metrics
    chat: Chat
