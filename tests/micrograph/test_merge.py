"""Merging: which steps are dissolved, how many, and which steps train their roots."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopper.micrograph.merge import TimeSteps, make_time_steps
from hopper.micrograph.route import GlobalBatch

without_deadline = settings(deadline=None, max_examples=25)


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
