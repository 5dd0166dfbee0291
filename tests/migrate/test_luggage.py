"""What models take along: complete at home, no more than what is needed on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hopper.migrate.luggage import Luggage
from hopper.migrate.schedule import there_and_back


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_models_go_there_and_back(ranks: int) -> None:
    places = there_and_back(ranks)
    assert places.shape == (ranks, 2 * ranks + 1)
    for step in range(2 * ranks + 1):
        # No two models on one rank.
        assert sorted(places[:, step]) == list(range(ranks))
    for model in range(ranks):
        assert places[model, 0] == places[model, ranks] == places[model, -1] == model
        there, back = places[model, :ranks], places[model, ranks + 1 : -1]
        assert sorted(there) == list(range(ranks))
        assert back.tolist() == there[1:][::-1].tolist()


@pytest.mark.parametrize("places", [2, 3, 4])
def test_rows_come_home_and_gradients_reach_who_made_them(places: int) -> None:
    made_at = np.random.default_rng(places).integers(0, places, 12)
    shapes = {"sums": (5, 2), "rows": (12, 3), "own": (4, 1)}
    made = [
        {
            kind: torch.full((count, width), 10.0**place)
            * (torch.from_numpy(made_at[:count] == place)[:, None] if kind != "sums" else 1)
            for kind, (count, width) in shapes.items()
        }
        for place in range(places)
    ]
    total = {kind: sum(own[kind] for own in made) for kind in shapes}

    def luggage() -> Luggage:
        given = shapes, made_at, places, {"sums"}, torch.float32, torch.device("cpu")
        return Luggage(*given)

    here, numbers = luggage(), []
    for place in range(places):
        here.add(made[place])
        step, there = place + 1, luggage()
        sent, room = here.pack(step), there.room(step)
        assert sent.shape == room.shape
        numbers.append(sent.numel())
        there.unpack(step, sent)
        here = there
    assert all(torch.equal(here.rows[kind], total[kind]) for kind in shapes)
    assert numbers == sorted(numbers)
    assert numbers[-1] == sum(count * width for count, width in shapes.values())
    # What comes back is told by who made the row that it is the gradient of.
    for step in range(places + 1, 2 * places):
        there = luggage()
        there.unpack(step, here.pack(step))
        place = 2 * places - step
        for kind in ("rows", "own"):
            own = torch.from_numpy(made_at[: shapes[kind][0]] == place)
            assert torch.equal(there.rows[kind][own], total[kind][own])
            gone = torch.from_numpy(made_at[: shapes[kind][0]] > place)
            assert not there.rows[kind][gone].any()
        assert torch.equal(there.rows["sums"], total["sums"])
        here = there
