"""Independent models start at home, meet every rank once and come home."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.migrate.schedule import Move, round_trips, visits


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


def test_one_rank_moves_nothing() -> None:
    for visit in visits(round_trips(2, 1, [0, 1]), 0):
        assert (visit.arrivals, visit.models, visit.departures) == ((), (0, 1), ())
