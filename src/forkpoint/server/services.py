"""What all calls of a server share. Tests: tests/server/test_turns.py."""

from dataclasses import dataclass

from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.collector import CollectionLoop
from forkpoint.server.http.breaker import Breaker
from forkpoint.server.http.keys import Keyring
from forkpoint.server.http.metrics import Metrics
from forkpoint.server.http.tenants import Tenants
from forkpoint.server.live.runs import Turns
from forkpoint.server.live.watch import Watching
from forkpoint.server.orphans import OrphanLoop
from forkpoint.server.settings import ServerSettings
from forkpoint.server.wires.chat.service import ChatService
from forkpoint.server.wires.responses.service import ResponsesService


@dataclass(frozen=True)
class Services:
    """The parts of a server that runs."""

    settings: ServerSettings
    agents: Catalog
    keyring: Keyring | None  # None: everybody is the default tenant, and only loopback is listened on
    tenants: Tenants
    turns: Turns
    watching: Watching
    metrics: Metrics
    breaker: Breaker
    chat: ChatService
    responses: ResponsesService
    collector: CollectionLoop
    orphans: OrphanLoop
