"""The suite that every store must pass. Subclass it and say how your store is opened::

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def opener(self, tmp_path):
            async def open_mine(clock):
                return await MyStore.open(tmp_path / "x", clock=clock)
            return open_mine

Called again, ``opener`` opens the same data a second time, as another process would; a store whose capabilities say
that it is not shared is not asked to.
"""

from forkpoint.testing.conformance.branches.elsewhere import ElsewhereConformance
from forkpoint.testing.conformance.branches.forks import ForkConformance
from forkpoint.testing.conformance.branches.keeps import KeepConformance
from forkpoint.testing.conformance.branches.notes import NoteConformance
from forkpoint.testing.conformance.branches.parts import PartConformance
from forkpoint.testing.conformance.branches.sides import SideConformance
from forkpoint.testing.conformance.branches.sub_agents import SubAgentConformance
from forkpoint.testing.conformance.budgets import BudgetConformance
from forkpoint.testing.conformance.changes import ChangeConformance
from forkpoint.testing.conformance.conversations import ConversationConformance
from forkpoint.testing.conformance.documents import DocumentConformance
from forkpoint.testing.conformance.evidence.anchors import AnchorConformance
from forkpoint.testing.conformance.evidence.care import CareConformance
from forkpoint.testing.conformance.evidence.copies import CopyConformance
from forkpoint.testing.conformance.evidence.erasures import ErasureConformance
from forkpoint.testing.conformance.evidence.holds import HoldConformance
from forkpoint.testing.conformance.evidence.ledger import LedgerConformance
from forkpoint.testing.conformance.evidence.records import RecordConformance
from forkpoint.testing.conformance.keys import KeyConformance
from forkpoint.testing.conformance.landmarks import LandmarkConformance
from forkpoint.testing.conformance.lists import ListConformance
from forkpoint.testing.conformance.newest_turns import NewestTurnConformance
from forkpoint.testing.conformance.orphans import OrphanConformance
from forkpoint.testing.conformance.processes import ProcessConformance
from forkpoint.testing.conformance.steers import SteerConformance
from forkpoint.testing.conformance.stops import StopConformance
from forkpoint.testing.conformance.turns import TurnConformance

__all__ = ["StoreConformance"]


class StoreConformance(
    ConversationConformance,
    TurnConformance,
    NewestTurnConformance,
    ForkConformance,
    KeepConformance,
    PartConformance,
    KeyConformance,
    ElsewhereConformance,
    SubAgentConformance,
    SideConformance,
    LandmarkConformance,
    LedgerConformance,
    ListConformance,
    NoteConformance,
    OrphanConformance,
    ProcessConformance,
    StopConformance,
    SteerConformance,
    ChangeConformance,
    CareConformance,
    AnchorConformance,
    CopyConformance,
    ErasureConformance,
    HoldConformance,
    BudgetConformance,
    RecordConformance,
    DocumentConformance,
):
    """All that is asked of a store."""
