"""How much is measured: all of it, or a quick look."""

from msgspec import Struct


class Plan(Struct, frozen=True):
    """Sizes are numbers of events; rounds are how often each contender has its turn."""

    sizes: tuple[int, ...]
    large: int  # only Forkpoint and the floor
    rounds: int
    load_rounds: int
    peer_rounds: int  # few, so that what a peer has to carry along hardly grows
    peer_seconds: float  # for each operation of a peer at each size, in all
    chain: int  # forks of forks
    forks: int  # side by side, for their bytes
    shared: int  # events that these forks have in common
    writer_rounds: int
    collisions: int  # rounds of all writers on one conversation
    writer_turns: int  # of each writer in a round
    messages: tuple[int, ...]  # before the turns that agents run
    run_rounds: int  # of these turns, fewer where they are long
    quick: bool

    @property
    def all_sizes(self) -> tuple[int, ...]:
        return (*self.sizes, self.large)


FULL = Plan(
    sizes=(100, 1_000, 10_000),
    large=1_000_000,
    rounds=400,
    load_rounds=40,
    peer_rounds=25,
    peer_seconds=3.0,
    chain=1_000,
    forks=100,
    shared=1_000,
    writer_rounds=9,
    collisions=3,
    writer_turns=12,
    messages=(10, 1_000, 10_000),
    run_rounds=10,
    quick=False,
)

QUICK = Plan(
    sizes=(100, 1_000),
    large=20_000,
    rounds=60,
    load_rounds=15,
    peer_rounds=10,
    peer_seconds=0.3,
    chain=100,
    forks=20,
    shared=200,
    writer_rounds=3,
    collisions=1,
    writer_turns=5,
    messages=(10, 200),
    run_rounds=6,
    quick=True,
)
