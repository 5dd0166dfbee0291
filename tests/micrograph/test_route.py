"""Which roots an iteration trains, who owns them, where they live, and which steps train them."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopper.micrograph.merge import TimeSteps, make_time_steps
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


# Merging: which steps are dissolved, how many, and which steps train their roots


def make_batch(counts: NDArray[np.int64]) -> GlobalBatch:
    """Make a batch with ``counts[model, rank]`` roots of each model and home rank; ids ascend."""
    ranks = counts.shape[1]
    homes = np.concatenate([np.repeat(np.arange(ranks), row) for row in counts])
    bounds = np.concatenate(([0], np.cumsum(counts.sum(1))))
    return GlobalBatch(2, 5, np.arange(homes.size), bounds, homes)


@st.composite
def batches(draw: st.DrawFn) -> GlobalBatch:
    ranks = draw(st.integers(1, 5))
    row = st.lists(st.integers(0, 6), min_size=ranks, max_size=ranks)
    return make_batch(np.array(draw(st.lists(row, min_size=ranks, max_size=ranks))))


def group_sizes(steps: TimeSteps) -> list[list[int]]:
    """Return [models][steps], the numbers of roots."""
    return [[roots.size for roots in groups] for groups in steps.groups]


def test_unmerged_every_root_is_trained_at_home():
    batch = make_batch(np.array([[3, 0, 1], [2, 2, 2], [0, 4, 0]]))
    steps = make_time_steps(batch, 3)
    assert steps.ranks.tolist() == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert group_sizes(steps) == [[3, 0, 1], [2, 2, 2], [0, 0, 4]]
    for model, groups in enumerate(steps.groups):
        for step, roots in enumerate(groups):
            assert (batch.home_ranks[roots] == steps.ranks[model, step]).all()


def test_the_step_with_the_fewest_roots_is_dissolved_and_counts_are_taken_anew():
    # Step t of model d is home rank (d + t) mod 4: totals are 40, 10, 13, 12.
    by_step = np.array([[10, 2, 3, 3], [10, 4, 3, 3], [10, 0, 4, 3], [10, 4, 3, 3]])
    counts = np.array([np.roll(row, model) for model, row in enumerate(by_step)])
    batch = make_batch(counts)
    one_dissolved = make_time_steps(batch, 4, dissolve=1)
    # Step 1 went; its roots are spread over the same model's steps 0, 2 and 3.
    assert one_dissolved.ranks.tolist() == [[(m + t) % 4 for t in (0, 2, 3)] for m in range(4)]
    assert group_sizes(one_dissolved) == [[11, 4, 3], [12, 4, 4], [10, 4, 3], [12, 4, 4]]
    # Anew: 45, 16, 14, so step 3 is next, though step 2 had more roots at first.
    two_dissolved = make_time_steps(batch, 4, dissolve=2)
    assert two_dissolved.ranks.tolist() == [[(m + t) % 4 for t in (0, 2)] for m in range(4)]
    assert group_sizes(two_dissolved) == [[13, 5], [14, 6], [12, 5], [14, 6]]


@without_deadline
@given(batches(), st.data())
def test_each_model_keeps_its_roots_and_fewest_keeps_models_apart(batch, data):
    ranks = batch.bounds.size - 1
    dissolve = data.draw(st.integers(0, ranks - 1))
    for selection in ("fewest", "random"):
        steps = make_time_steps(
            batch, ranks, dissolve, selection, seed=data.draw(st.integers(0, 9))
        )
        assert steps.count == ranks - dissolve
        for model in range(ranks):
            trained = np.concatenate(steps.groups[model])
            assert sorted(trained.tolist()) == sorted(batch.of_model(model).tolist())
            assert len(set(steps.ranks[model].tolist())) == steps.count
    with pytest.raises(ValueError, match=rf"expected 0 to {ranks - 1} of {ranks} steps, got"):
        make_time_steps(batch, ranks, dissolve=ranks)
    fewest = make_time_steps(batch, ranks, dissolve)
    for step in range(fewest.count):
        assert sorted(fewest.ranks[:, step].tolist()) == list(range(ranks))


@pytest.mark.parametrize("dissolve", [1, 2])
def test_random_selection_takes_every_step_equally_often_and_lets_models_meet(dissolve):
    batch = make_batch(np.ones((3, 3), np.int64))
    times_dissolved, most_at_once = np.zeros((3, 3)), 0
    for seed in range(600):
        ranks = make_time_steps(batch, 3, dissolve, "random", seed).ranks
        assert (make_time_steps(batch, 3, dissolve, "random", seed).ranks == ranks).all()
        most_at_once = max(most_at_once, *(np.bincount(step).max() for step in ranks.T))
        for model in range(3):
            remaining_steps = {(rank - model) % 3 for rank in ranks[model].tolist()}
            times_dissolved[model, [*({0, 1, 2} - remaining_steps)]] += 1
    # Binomial with 600 draws of 1/3: five standard deviations are 58.
    assert abs(times_dissolved - 200 * dissolve).max() < 58
    assert most_at_once > 1
