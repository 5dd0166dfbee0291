"""How many steps are merged is decided from pairs of iterations: never to a loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

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


def one_epoch(state: MergeNumber, epoch: int, iterations: int, time: Time) -> MergeNumber:
    """What follows from an epoch; a resumed run would go on from the same."""
    decisions = state.decisions(epoch)
    seconds = {
        each: time(number_of_steps(decisions, epoch, each), epoch) for each in range(iterations)
    }
    return MergeNumber.restore(json.loads(json.dumps(state.after(epoch, seconds).state())))


def numbers(
    costs: Sequence[float], epochs: int, iterations: int = 60, noise: float = 0.0, seed: int = 0
) -> list[int]:
    """The number that stands in every epoch where each number of steps has its own cost."""
    rng = np.random.default_rng(seed)
    state, found = MergeNumber.adaptive(len(costs) - 1), []
    for epoch in range(epochs):
        found.append(state.decisions(epoch)[MERGE])
        # The machine's own speed changes from epoch to epoch by more than merging does.
        speed = rng.uniform(0.8, 1.2)
        state = one_epoch(
            state,
            epoch,
            iterations,
            lambda steps, _, speed=speed: speed * costs[steps] * max(0.2, rng.normal(1.0, noise)),
        )
    return found


def test_both_numbers_come_in_turn_and_either_comes_first() -> None:
    turns = [number_of_steps(COMPARED, 0, each) for each in range(13)]
    assert turns == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert [number_of_steps(COMPARED, 1, each) for each in range(13)] == [
        1 - each for each in turns
    ]
    last = 4 * MOST_PAIRS
    assert {number_of_steps(COMPARED, 0, each) for each in range(last - 3, last + 1)} == {0, 1}
    assert {number_of_steps(COMPARED, 0, each) for each in range(last + 1, last + 9)} == {0}


def test_in_an_epoch_that_is_not_compared_all_have_the_number_that_stands() -> None:
    assert {number_of_steps({MERGE: 2}, 3, each) for each in range(9)} == {2}


def test_it_takes_what_is_fastest() -> None:
    # Figure 17, without noise: four steps, three, two; three are best and stay.
    assert numbers([1.0, 0.8, 0.9, 0.5], 6) == [0, 0, 1, 1, 1, 1]
    assert numbers([1.0, 0.9, 0.8, 0.7], 6) == [0, 0, 1, 2, 3, 3]
    assert set(numbers([1.0, 0.99, 0.5, 0.5], 9)) == {0}


@pytest.mark.parametrize("iterations", [9, 33, 120])
def test_what_is_slower_is_not_taken(iterations: int) -> None:
    wrong = 0
    for seed in range(100):
        slower = 1.03 + 0.17 * seed / 99
        last = numbers([1.0, slower, 0.9], 12, iterations, 0.1, seed)[-1]
        wrong += last > 0
    assert wrong <= 1


def test_what_is_faster_is_found_mostly() -> None:
    found = [numbers([1.0, 0.9, 0.99], 12, 33, 0.1, seed)[-1] for seed in range(50)]
    assert found.count(1) >= 45


def test_a_number_that_has_become_slower_is_given_up() -> None:
    state, found = MergeNumber.adaptive(1), []
    for epoch in range(FIRST_PAUSE + 6):
        found.append(state.decisions(epoch))
        state = one_epoch(
            state, epoch, 60, lambda steps, epoch: 1 - 0.2 * steps if epoch < 5 else 1 + 0.2 * steps
        )
    check = 2 + FIRST_PAUSE
    assert found[1] == {MERGE: 0, TRIED: 1}
    assert found[2:check] == [{MERGE: 1}] * FIRST_PAUSE
    assert found[check] == {MERGE: 1, TRIED: 0}
    assert found[check + 1 :] == [{MERGE: 0}] * 3
    assert state.start is None


def test_pauses_between_checks_double() -> None:
    state, checks = MergeNumber.adaptive(1), []
    for epoch in range(60):
        if TRIED in state.decisions(epoch):
            checks.append(epoch)
        state = one_epoch(state, epoch, 60, lambda steps, _: 1 - 0.2 * steps)
    assert checks == [1, 10, 27]


def test_it_steps_back_one_by_one() -> None:
    state = MergeNumber(3, number=2, lower=1, start=4, pause=8)
    state = one_epoch(state, 4, 60, lambda steps, _: 1 + 0.1 * steps)
    assert (state.number, state.lower, state.start) == (1, 0, 5 + FIRST_PAUSE)


def test_pairs_of_short_epochs_are_collected() -> None:
    state = MergeNumber.adaptive(1)
    for epoch in range(1 + LEAST_PAIRS):
        assert state.number == 0
        state = one_epoch(state, epoch, 8, lambda steps, _: 1 - 0.2 * steps)
    assert state.number == 1
    # In four iterations there is no pair.
    state = one_epoch(MergeNumber.adaptive(1), 1, 4, lambda steps, _: 1 - 0.2 * steps)
    assert (state.number, state.start) == (0, None)


def test_what_stays_undecided_ends() -> None:
    """Two numbers of which the second looks better, never surely."""
    rng = np.random.default_rng(0)
    state = MergeNumber.adaptive(1)
    for epoch in range(1, 1 + MOST_EPOCHS):
        assert state.start == epoch
        state = one_epoch(state, epoch, 8, lambda steps, _: 1 - 0.3 * steps + 0.6 * rng.random())
        if state.start is None:
            break
    assert state.number in (0, 1)
    assert state.start != epoch + 1


def test_times_that_tell_of_another_iteration_are_left_out() -> None:
    """The first iteration, the last, and those after which the other number is read."""
    state = MergeNumber.adaptive(1)
    seconds = dict.fromkeys(range(12), 1.0)
    for each in (0, 2, 6, 10, 11):
        seconds[each] = 1000.0
    assert state.after(1, seconds).differences == (0.0, 0.0)


def test_after_a_resumption_what_is_left_is_compared() -> None:
    state = MergeNumber.adaptive(1)
    whole = {each: 1.0 + 0.01 * each for each in range(30)}
    left = {each: seconds for each, seconds in whole.items() if each >= 7}
    resumed = state.after(1, left)
    assert resumed.epochs == 0
    assert resumed.differences == state.after(1, whole).differences[-len(resumed.differences) :]
    assert 0 < len(resumed.differences) < len(state.after(1, whole).differences)


def test_what_runs_ahead_stops_where_an_epoch_compares() -> None:
    state = MergeNumber.adaptive(2)
    assert [state.knows(epoch) for epoch in range(3)] == [True, False, False]
    assert MergeNumber.fixed(2).decisions(9) == {MERGE: 2}
    assert MergeNumber.fixed(2).knows(9)


def test_alone_there_is_nothing_to_dissolve() -> None:
    state = MergeNumber.adaptive(0)
    assert state.decisions(5) == {MERGE: 0}
    assert state.after(1, {0: 1.0}) == state


def test_what_is_surely_slower_is_given_up_soon() -> None:
    state = MergeNumber.adaptive(1)
    for epoch in (1, 2):
        assert state.start == epoch
        # Three pairs an epoch; six have an interval.
        state = one_epoch(state, epoch, 13, lambda steps, _: 1 + 0.1 * steps)
    assert (state.number, state.start) == (0, None)
