"""How many steps are merged is decided by pairs of iterations, and never slows training down."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from hopper.micrograph.merge_number import (
    FIRST_PAUSE,
    LEAST_PAIRS,
    MERGE,
    MOST_EPOCHS,
    MOST_PAIRS,
    TRIED,
    MergeNumber,
    number_of_steps,
)

Time = Callable[[int, int], float]
"""of an iteration: from its number of dissolved steps and the epoch"""
COMPARED = {MERGE: 0, TRIED: 1}


def run_epoch(state: MergeNumber, epoch: int, iterations: int, time: Time) -> MergeNumber:
    """Return the state after an epoch, saved and restored as by a run that resumes."""
    decisions = state.decisions(epoch)
    seconds = {
        iteration: time(number_of_steps(decisions, epoch, iteration), epoch)
        for iteration in range(iterations)
    }
    return MergeNumber.restore(json.loads(json.dumps(state.after(epoch, seconds).state())))


def merged_by_epoch(
    costs: Sequence[float], epochs: int, iterations: int = 60, noise: float = 0.0, seed: int = 0
) -> list[int]:
    """Return how many steps are merged in every epoch, where each number of steps has its cost."""
    rng = np.random.default_rng(seed)
    state, merged = MergeNumber.adaptive(len(costs) - 1), []
    for epoch in range(epochs):
        merged.append(state.decisions(epoch)[MERGE])
        # The machine's own speed changes from epoch to epoch by more than merging does.
        speed = rng.uniform(0.8, 1.2)
        state = run_epoch(
            state,
            epoch,
            iterations,
            lambda steps, _, speed=speed: speed * costs[steps] * max(0.2, rng.normal(1.0, noise)),
        )
    return merged


def test_compared_numbers_take_turns_and_either_comes_first() -> None:
    numbers = [number_of_steps(COMPARED, 0, i) for i in range(13)]
    assert numbers == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert [number_of_steps(COMPARED, 1, i) for i in range(13)] == [
        1 - number for number in numbers
    ]
    last = 4 * MOST_PAIRS
    assert {number_of_steps(COMPARED, 0, i) for i in range(last - 3, last + 1)} == {0, 1}
    assert {number_of_steps(COMPARED, 0, i) for i in range(last + 1, last + 9)} == {0}
    # Without a comparison every iteration has the chosen number.
    assert {number_of_steps({MERGE: 2}, 3, i) for i in range(9)} == {2}


def test_the_fastest_number_is_taken() -> None:
    # Figure 17, without noise: four steps, three, two; three are best and stay.
    assert merged_by_epoch([1.0, 0.8, 0.9, 0.5], 6) == [0, 0, 1, 1, 1, 1]
    assert merged_by_epoch([1.0, 0.9, 0.8, 0.7], 6) == [0, 0, 1, 2, 3, 3]
    assert set(merged_by_epoch([1.0, 0.99, 0.5, 0.5], 9)) == {0}


def test_a_slower_number_is_not_taken_and_a_faster_one_mostly_is() -> None:
    for iterations in (9, 33, 120):
        runs = [
            merged_by_epoch([1.0, 1.03 + 0.17 * seed / 49, 0.9], 12, iterations, 0.1, seed)
            for seed in range(50)
        ]
        assert sum(merged[-1] > 0 for merged in runs) <= 1
    faster = [merged_by_epoch([1.0, 0.9, 0.99], 12, 33, 0.1, seed)[-1] for seed in range(50)]
    assert faster.count(1) >= 45


def test_a_number_that_has_become_slower_is_given_up() -> None:
    state, decisions = MergeNumber.adaptive(1), []
    for epoch in range(FIRST_PAUSE + 6):
        decisions.append(state.decisions(epoch))
        state = run_epoch(
            state, epoch, 60, lambda steps, epoch: 1 - 0.2 * steps if epoch < 5 else 1 + 0.2 * steps
        )
    check = 2 + FIRST_PAUSE
    assert decisions[1] == {MERGE: 0, TRIED: 1}
    assert decisions[2:check] == [{MERGE: 1}] * FIRST_PAUSE
    assert decisions[check] == {MERGE: 1, TRIED: 0}
    assert decisions[check + 1 :] == [{MERGE: 0}] * 3
    assert state.start is None


def test_pauses_between_checks_double() -> None:
    state, checks = MergeNumber.adaptive(1), []
    for epoch in range(60):
        if TRIED in state.decisions(epoch):
            checks.append(epoch)
        state = run_epoch(state, epoch, 60, lambda steps, _: 1 - 0.2 * steps)
    assert checks == [1, 10, 27]


def test_comparisons_of_several_epochs() -> None:
    # Slower numbers are left one step at a time.
    state = MergeNumber(3, number=2, lower=1, start=4, pause=8)
    state = run_epoch(state, 4, 60, lambda steps, _: 1 + 0.1 * steps)
    assert (state.number, state.lower, state.start) == (1, 0, 5 + FIRST_PAUSE)
    # Pairs of short epochs are collected.
    state = MergeNumber.adaptive(1)
    for epoch in range(1 + LEAST_PAIRS):
        assert state.number == 0
        state = run_epoch(state, epoch, 8, lambda steps, _: 1 - 0.2 * steps)
    assert state.number == 1
    # In four iterations there is no pair.
    state = run_epoch(MergeNumber.adaptive(1), 1, 4, lambda steps, _: 1 - 0.2 * steps)
    assert (state.number, state.start) == (0, None)
    # A surely slower number is given up soon: three pairs an epoch; six have an interval.
    state = MergeNumber.adaptive(1)
    for epoch in (1, 2):
        assert state.start == epoch
        state = run_epoch(state, epoch, 13, lambda steps, _: 1 + 0.1 * steps)
    assert (state.number, state.start) == (0, None)


def test_an_undecided_comparison_ends() -> None:
    """Of two numbers the second looks better, but is never surely better."""
    rng = np.random.default_rng(0)
    state = MergeNumber.adaptive(1)
    for epoch in range(1, 1 + MOST_EPOCHS):
        assert state.start == epoch
        state = run_epoch(state, epoch, 8, lambda steps, _: 1 - 0.3 * steps + 0.6 * rng.random())
        if state.start is None:
            break
    assert state.number in (0, 1)
    assert state.start != epoch + 1


def test_times_that_another_iteration_disturbs_are_left_out() -> None:
    """Left out are the first and last iterations, and those after which the number changes."""
    state = MergeNumber.adaptive(1)
    seconds = dict.fromkeys(range(12), 1.0)
    for iteration in (0, 2, 6, 10, 11):
        seconds[iteration] = 1000.0
    assert state.after(1, seconds).differences == (0.0, 0.0)


def test_after_a_resumption_the_rest_of_the_epoch_is_compared() -> None:
    state = MergeNumber.adaptive(1)
    seconds_of_all = {iteration: 1.0 + 0.01 * iteration for iteration in range(30)}
    seconds_of_rest = {
        iteration: time for iteration, time in seconds_of_all.items() if iteration >= 7
    }
    resumed = state.after(1, seconds_of_rest)
    assert resumed.epochs == 0
    assert (
        resumed.differences
        == state.after(1, seconds_of_all).differences[-len(resumed.differences) :]
    )
    assert 0 < len(resumed.differences) < len(state.after(1, seconds_of_all).differences)


def test_numbers_are_known_ahead_until_an_epoch_compares() -> None:
    assert [MergeNumber.adaptive(2).knows(epoch) for epoch in range(3)] == [True, False, False]
    fixed, alone = MergeNumber.fixed(2), MergeNumber.adaptive(0)
    assert fixed.knows(9)
    assert fixed.decisions(9) == {MERGE: 2}
    # One rank has no step to dissolve.
    assert alone.decisions(5) == {MERGE: 0}
    assert alone.after(1, {0: 1.0}) == alone
