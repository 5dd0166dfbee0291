"""Who trains what where: models move between steps, none is lost, none arrives unannounced."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.baselines.naive import there_and_back
from hopper.migrate.schedule import Move, Visit, round_trips, visits


@st.composite
def itineraries(draw: st.DrawFn) -> NDArray[np.int64]:
    """Any number of models on any ranks at any steps."""
    ranks, steps = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    places = st.lists(st.integers(0, ranks - 1), min_size=steps, max_size=steps)
    return np.array(draw(st.lists(places, min_size=ranks, max_size=ranks)), np.int64)


def test_visits():
    ring = np.array([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    assert visits(ring, 0) == [
        Visit(0, arrivals=(), models=(0,), departures=(Move(0, 1),)),
        Visit(1, arrivals=(Move(2, 2),), models=(2,), departures=(Move(2, 1),)),
        Visit(2, arrivals=(Move(1, 2),), models=(1,), departures=()),
    ]
    # Models that meet are trained in order, and one that stays does not move.
    meeting = np.array([[0, 1], [1, 1]])
    assert visits(meeting, 0) == [Visit(0, (), (0,), (Move(0, 1),)), Visit(1, (), (), ())]
    assert visits(meeting, 1) == [Visit(0, (), (1,), ()), Visit(1, (Move(0, 0),), (0, 1), ())]
    first, second, home = visits(round_trips(3, 2, [0, 1, 2]), 0)
    assert (first.models, first.departures) == ((0, 2), (Move(0, 1), Move(2, 1)))
    assert second.models == (1,)
    assert second.arrivals == second.departures == (Move(1, 1),)
    assert (home.models, home.arrivals) == ((0, 2), (Move(0, 1), Move(2, 1)))


@settings(deadline=None)
@given(itineraries())
def test_every_departure_has_an_arrival_and_models_train_where_they_should(ranks):
    count, steps = ranks.shape
    of_rank = [(rank, visit) for rank in range(count) for visit in visits(ranks, rank)]
    rank_by_step = {(model, v.step): rank for rank, v in of_rank for model in v.models}
    assert rank_by_step == {(m, s): ranks[m, s] for m in range(count) for s in range(steps)}
    departures = {(v.step + 1, m.model, rank, m.rank) for rank, v in of_rank for m in v.departures}
    arrivals = {(v.step, m.model, m.rank, rank) for rank, v in of_rank for m in v.arrivals}
    assert departures == arrivals
    assert all(origin != goal for _, _, origin, goal in departures)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.data())
def test_every_travelling_model_meets_every_rank_once(models, ranks, data):
    travelling = data.draw(st.sets(st.integers(0, models - 1)))
    places = round_trips(models, ranks, travelling)
    assert places.shape == (models, ranks + 1)
    for model, row in enumerate(places.tolist()):
        if model in travelling:
            assert sorted(row[:-1]) == list(range(ranks))
            assert row[0] == row[-1] == model % ranks
        else:
            assert set(row) == {-1}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_work_is_even_and_models_return_the_same_way(ranks):
    for step in round_trips(2 * ranks, ranks, range(2 * ranks)).T:
        assert np.bincount(step).tolist() == [2] * ranks
    places = there_and_back(ranks)
    assert places.shape == (ranks, 2 * ranks + 1)
    # No two models on one rank.
    assert (np.sort(places, 0) == np.arange(ranks)[:, None]).all()
    for model, row in enumerate(places.tolist()):
        assert row[0] == row[ranks] == row[-1] == model
        assert sorted(row[:ranks]) == list(range(ranks))
        assert row[ranks + 1 : -1] == row[1:ranks][::-1]
