"""Which roots an iteration trains, who owns them and where they live."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopper.micrograph.route import (
    GlobalBatch,
    LocalRootSchedule,
    RootSchedule,
    TrainingNodes,
    permute,
)
from hopper.partition import PartitionBook
from hopper.partition.placement import Placement

without_deadline = settings(deadline=None, max_examples=25)


class RandomPartition:
    """A random partition of nodes of one type."""

    def __init__(self, nodes: int, servers: int, seed: int) -> None:
        homes = np.random.default_rng(seed).integers(0, servers, nodes)
        self.original_ids = np.argsort(homes, kind="stable")
        self.global_ids = np.argsort(self.original_ids)
        counts = np.bincount(homes, minlength=servers)
        self.book = PartitionBook(servers, {"node": [0, *np.cumsum(counts).tolist()]})

    def schedule(
        self, train: NDArray[np.int64], kind: type[RootSchedule] = RootSchedule, **options: Any
    ) -> RootSchedule:
        values = {"seed": 3, "batch_size": 4, "models": 2, "ranks_per_server": 1, **options}
        placement = Placement(self.book, values.pop("ranks_per_server"))
        return kind(TrainingNodes(placement, "node", train, self.global_ids), **values)

    def original(self, roots: NDArray[np.int64]) -> list[int]:
        return self.original_ids[roots].tolist()


def models_of(batch: GlobalBatch) -> np.ndarray:
    """Return the model that owns each root."""
    return np.repeat(np.arange(batch.bounds.size - 1), np.diff(batch.bounds))


@st.composite
def schedules(draw: st.DrawFn) -> tuple[RandomPartition, NDArray[np.int64], dict[str, int]]:
    nodes = draw(st.integers(1, 60))
    servers, ranks_per_server = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    train = draw(st.lists(st.integers(0, nodes - 1), unique=True, min_size=1))
    return (
        RandomPartition(nodes, servers, draw(st.integers(0, 99))),
        np.sort(train),
        {
            "seed": draw(st.integers(0, 1 << 40)),
            "batch_size": draw(st.integers(1, 12)),
            "models": servers * ranks_per_server,
            "ranks_per_server": ranks_per_server,
        },
    )


def batches_of_epoch(schedule: RootSchedule, epoch: int) -> list[GlobalBatch]:
    return [schedule.batch(epoch, iteration) for iteration in range(schedule.iterations)]


@without_deadline
@given(schedules())
def test_an_epoch_visits_every_root_once_in_even_mini_batches_of_groups(case):
    placement, train, options = case
    ranks = range(options["models"])
    batches = batches_of_epoch(placement.schedule(train, **options), 1)
    assert sorted(placement.original(np.concatenate([b.roots for b in batches]))) == sorted(train)
    whole = options["batch_size"] * options["models"]
    assert [batch.size for batch in batches[:-1]] == [whole] * (len(batches) - 1)
    assert 0 < batches[-1].size <= whole
    for iteration, batch in enumerate(batches):
        assert (batch.epoch, batch.iteration) == (1, iteration)
        sizes = [batch.of_model(model).size for model in ranks]
        assert sum(sizes) == batch.size
        assert max(sizes) - min(sizes) <= 1
        assert np.bincount(models_of(batch), minlength=options["models"]).tolist() == sizes
        groups = {(d, s): batch.group(d, s).tolist() for d in ranks for s in ranks}
        assert Counter(chain(*groups.values())) == Counter(batch.roots.tolist())
        for rank in ranks:
            assert list(chain(*(groups[d, rank] for d in ranks))) == batch.of_home(rank).tolist()
            assert sorted(chain(*(groups[rank, s] for s in ranks))) == sorted(
                batch.of_model(rank).tolist()
            )
            servers = placement.book.home("node", batch.of_home(rank))
            assert set(servers.tolist()) <= {rank // options["ranks_per_server"]}


@without_deadline
@given(schedules(), st.integers(0, 99))
def test_the_batches_do_not_depend_on_the_partition(case, seed):
    """Every model has the same original ids in the same order under both partitions."""
    placement, train, options = case
    other_placement = RandomPartition(placement.global_ids.size, placement.book.servers, seed)
    batches = batches_of_epoch(placement.schedule(train, **options), 2)
    other_batches = batches_of_epoch(other_placement.schedule(train, **options), 2)
    for batch, other_batch in zip(batches, other_batches, strict=True):
        assert placement.original(batch.roots) == other_placement.original(other_batch.roots)
        assert batch.bounds.tolist() == other_batch.bounds.tolist()


def test_the_global_batch_does_not_depend_on_the_number_of_ranks():
    """1, 2 and 4 models over the same 8 roots an iteration (invariant 2)."""
    train = np.arange(30)
    orders = []
    for models in (1, 2, 4):
        placement = RandomPartition(50, models, 0)
        schedule = placement.schedule(train, batch_size=8 // models, models=models)
        orders.append([placement.original(batch.roots) for batch in batches_of_epoch(schedule, 0)])
    assert orders[0] == orders[1] == orders[2]
    assert list(chain(*orders[0])) == permute(3, 0, 30, train).tolist()


@pytest.mark.parametrize(
    ("train", "options", "sizes"),
    [
        (20, {}, [[4, 4], [4, 4], [2, 2]]),
        (19, {}, [[4, 4], [4, 4], [1, 2]]),
        (17, {}, [[4, 4], [4, 4], [0, 1]]),
        (16, {}, [[4, 4], [4, 4]]),
        (3, {}, [[1, 2]]),
        (1, {"models": 4}, [[0, 0, 0, 1]]),
        (20, {"drop_last": True}, [[4, 4], [4, 4]]),
        (16, {"drop_last": True}, [[4, 4], [4, 4]]),
        (7, {"drop_last": True}, []),
        (20, {"most_iterations": 1}, [[4, 4]]),
        (20, {"most_iterations": 9}, [[4, 4], [4, 4], [2, 2]]),
        (20, {"most_iterations": 3, "drop_last": True}, [[4, 4], [4, 4]]),
        (0, {}, []),
    ],
)
def test_the_last_batch(train, options, sizes):
    placement = RandomPartition(40, 2, 0)
    schedule = placement.schedule(np.arange(train), **options)
    assert schedule.iterations == len(sizes)
    batches = batches_of_epoch(schedule, 0)
    assert [np.diff(batch.bounds).tolist() for batch in batches] == sizes
    # A limit leaves the batches before it as they are, also those of a rank's own roots.
    local, whole = (
        placement.schedule(np.arange(train), LocalRootSchedule, **more)
        for more in (options, options | {"most_iterations": 0})
    )
    for iteration in range(len(sizes)):
        batch, same = local.batch(0, iteration), whole.batch(0, iteration)
        assert batch.roots.tolist() == same.roots.tolist()


@pytest.mark.parametrize("kind", [RootSchedule, LocalRootSchedule])
def test_epochs_differ_and_do_not_depend_on_their_order(kind):
    placement = RandomPartition(40, 2, 0)
    schedule = placement.schedule(np.arange(40), kind)
    first = [batch.roots.tolist() for batch in batches_of_epoch(schedule, 0)]
    second = [batch.roots.tolist() for batch in batches_of_epoch(schedule, 1)]
    assert first != second
    assert [batch.roots.tolist() for batch in batches_of_epoch(schedule, 0)] == first
    assert placement.schedule(np.arange(40), kind).batch(1, 3).roots.tolist() == second[3]


@without_deadline
@given(schedules(), st.integers(0, 3))
def test_ranks_of_a_local_schedule_train_their_roots_once_and_no_others(case, epoch):
    placement, train, options = case
    local = placement.schedule(train, LocalRootSchedule, **options)
    assert local.iterations == placement.schedule(train, **options).iterations
    batches = batches_of_epoch(local, epoch)
    assert sorted(placement.original(np.concatenate([b.roots for b in batches]))) == sorted(train)
    assert local.count(0, local.iterations) == len(train)
    for batch in batches:
        assert models_of(batch).tolist() == batch.home_ranks.tolist()
    # Each rank deals its roots evenly; one without roots has empty mini-batches.
    assert (np.ptp([np.diff(batch.bounds) for batch in batches], axis=0) <= 1).all()
