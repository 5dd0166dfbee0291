"""Who trains what where: models move between steps, none is lost, none arrives unannounced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.baselines.naive import there_and_back
from hopper.migrate.schedule import Move, Visit, round_trips, visits


def ring(ranks: int) -> NDArray[np.int64]:
    """[models, steps]: model d on rank (d + t) mod N at step t."""
    return (np.arange(ranks)[:, None] + np.arange(ranks)) % ranks


@st.composite
def itineraries(draw: st.DrawFn) -> NDArray[np.int64]:
    """Any number of models on any ranks at any steps."""
    ranks, steps = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    places = st.lists(st.integers(0, ranks - 1), min_size=steps, max_size=steps)
    return np.array(draw(st.lists(places, min_size=ranks, max_size=ranks)), np.int64)


def test_visits_of_rank_0_in_a_ring_of_three() -> None:
    assert visits(ring(3), 0) == [
        Visit(0, arrivals=(), models=(0,), departures=(Move(0, 1),)),
        Visit(1, arrivals=(Move(2, 2),), models=(2,), departures=(Move(2, 1),)),
        Visit(2, arrivals=(Move(1, 2),), models=(1,), departures=()),
    ]


def test_models_that_meet_are_trained_in_order_and_one_that_stays_does_not_move() -> None:
    ranks = np.array([[0, 1], [1, 1]])
    assert visits(ranks, 0) == [
        Visit(0, arrivals=(), models=(0,), departures=(Move(0, 1),)),
        Visit(1, arrivals=(), models=(), departures=()),
    ]
    assert visits(ranks, 1) == [
        Visit(0, arrivals=(), models=(1,), departures=()),
        Visit(1, arrivals=(Move(0, 0),), models=(0, 1), departures=()),
    ]


@settings(deadline=None)
@given(itineraries())
def test_every_departure_has_an_arrival_and_models_train_where_they_should(
    ranks: NDArray[np.int64],
) -> None:
    count, steps = ranks.shape
    timelines = [visits(ranks, rank) for rank in range(count)]
    rank_by_step = {
        (m, v.step): rank for rank, t in enumerate(timelines) for v in t for m in v.models
    }
    assert rank_by_step == {(m, s): ranks[m, s] for m in range(count) for s in range(steps)}
    departures = {
        (visit.step + 1, move.model, rank, move.rank)
        for rank, timeline in enumerate(timelines)
        for visit in timeline
        for move in visit.departures
    }
    arrivals = {
        (visit.step, move.model, move.rank, rank)
        for rank, timeline in enumerate(timelines)
        for visit in timeline
        for move in visit.arrivals
    }
    assert departures == arrivals
    assert all(origin != goal for _, _, origin, goal in departures)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.data())
def test_every_travelling_model_meets_every_rank_once(
    models: int, ranks: int, data: st.DataObject
) -> None:
    travelling = data.draw(st.sets(st.integers(0, models - 1)))
    places = round_trips(models, ranks, travelling)
    assert places.shape == (models, ranks + 1)
    for model, row in enumerate(places.tolist()):
        if model in travelling:
            assert sorted(row[:-1]) == list(range(ranks))
            assert row[0] == row[-1] == model % ranks
        else:
            assert set(row) == {-1}


@given(st.integers(1, 5), st.integers(1, 6))
def test_work_is_even_where_trials_are_a_multiple_of_ranks(times: int, ranks: int) -> None:
    places = round_trips(times * ranks, ranks, range(times * ranks))
    for step in range(ranks + 1):
        assert (np.bincount(places[:, step], minlength=ranks) == times).all()


def test_visits_of_rank_0_for_three_models_on_two_ranks() -> None:
    first, second, home = visits(round_trips(3, 2, [0, 1, 2]), 0)
    assert first.models == (0, 2)
    assert first.departures == (Move(0, 1), Move(2, 1))
    assert second.models == (1,)
    assert second.arrivals == second.departures == (Move(1, 1),)
    assert home.models == (0, 2)
    assert home.arrivals == (Move(0, 1), Move(2, 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_models_visit_every_rank_and_return_the_same_way(ranks: int) -> None:
    places = there_and_back(ranks)
    assert places.shape == (ranks, 2 * ranks + 1)
    for step in range(2 * ranks + 1):
        # No two models on one rank.
        assert sorted(places[:, step]) == list(range(ranks))
    for model in range(ranks):
        assert places[model, 0] == places[model, ranks] == places[model, -1] == model
        outward, homeward = places[model, :ranks], places[model, ranks + 1 : -1]
        assert sorted(outward) == list(range(ranks))
        assert homeward.tolist() == outward[1:][::-1].tolist()
