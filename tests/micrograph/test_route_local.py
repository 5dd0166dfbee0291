"""Batches of the locality engine: every rank draws from its own roots."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.micrograph.route import LocalRootSchedule, RootSchedule, TrainingNodes
from hopper.partition import PartitionBook
from hopper.partition.placement import Placement

NODES = 60


def schedules(
    servers: int, ranks_per_server: int, train: np.ndarray, batch_size: int, drop_last: bool
) -> tuple[LocalRootSchedule, RootSchedule]:
    """The local and the ordinary schedule of the same training nodes, evenly stored."""
    offsets = [NODES * server // servers for server in range(servers + 1)]
    placement = Placement(PartitionBook(servers, {"node": offsets}), ranks_per_server)
    options = {
        "seed": 7,
        "batch_size": batch_size,
        "models": servers * ranks_per_server,
        "drop_last": drop_last,
    }
    roots = TrainingNodes(placement, "node", train, np.arange(NODES))
    return LocalRootSchedule(roots, **options), RootSchedule(roots, **options)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4),
    st.integers(1, 2),
    st.lists(st.integers(0, NODES - 1), unique=True, min_size=1),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_each_rank_trains_all_its_roots_once_and_no_others(
    servers: int, ranks_per_server: int, train: list[int], batch_size: int, epoch: int
) -> None:
    local, ordinary = schedules(servers, ranks_per_server, np.array(train), batch_size, False)
    assert local.iterations == ordinary.iterations
    batches = [local.batch(epoch, iteration) for iteration in range(local.iterations)]
    assert sorted(np.concatenate([batch.roots for batch in batches]).tolist()) == sorted(train)
    for batch in batches:
        assert batch.models.tolist() == batch.home_ranks.tolist()
    sizes = np.array([np.diff(batch.bounds) for batch in batches])
    # Each rank deals its roots evenly.
    assert (np.ptp(sizes, axis=0) <= 1).all()


def test_epochs_are_shuffled_differently_and_can_be_repeated() -> None:
    local, _ = schedules(2, 1, np.arange(NODES), 5, False)
    first = [local.batch(0, i).roots.tolist() for i in range(local.iterations)]
    second = [local.batch(1, i).roots.tolist() for i in range(local.iterations)]
    assert first != second
    repeated, _ = schedules(2, 1, np.arange(NODES), 5, False)
    assert [repeated.batch(0, i).roots.tolist() for i in range(repeated.iterations)] == first


def test_a_rank_without_roots_has_empty_mini_batches() -> None:
    local, _ = schedules(2, 1, np.arange(10), 2, False)
    batch = local.batch(0, 0)
    assert batch.bounds[2] - batch.bounds[1] == 0
    assert batch.size == 3
