"""The rows that models carry: complete at home, and no more than needed on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.baselines.naive import CarriedActivations


@pytest.mark.parametrize("places", [2, 3, 4])
def test_rows_come_home_and_gradients_reach_who_made_them(places: int) -> None:
    made_by = np.random.default_rng(places).integers(0, places, 12)
    shapes = {"sums": (5, 2), "rows": (12, 3), "own": (4, 1)}
    rows_by_place = [
        {
            kind: torch.full((count, width), 10.0**place)
            * (torch.from_numpy(made_by[:count] == place)[:, None] if kind != "sums" else 1)
            for kind, (count, width) in shapes.items()
        }
        for place in range(places)
    ]
    total = {kind: sum(rows[kind] for rows in rows_by_place) for kind in shapes}

    def make_carried() -> CarriedActivations:
        arguments = shapes, made_by, places, {"sums"}, torch.float32, torch.device("cpu")
        return CarriedActivations(*arguments)

    carried, numbers = make_carried(), []
    for place in range(places):
        carried.add(rows_by_place[place])
        step, next_carried = place + 1, make_carried()
        packed, room = carried.pack(step), next_carried.room(step)
        assert packed.shape == room.shape
        numbers.append(packed.numel())
        next_carried.unpack(step, packed)
        carried = next_carried
    assert all(torch.equal(carried.rows[kind], total[kind]) for kind in shapes)
    assert numbers == sorted(numbers)
    assert numbers[-1] == sum(count * width for count, width in shapes.values())
    # On the way back travel gradients, each to the place that made its row.
    for step in range(places + 1, 2 * places):
        next_carried = make_carried()
        next_carried.unpack(step, carried.pack(step))
        place = 2 * places - step
        for kind in ("rows", "own"):
            is_own = torch.from_numpy(made_by[: shapes[kind][0]] == place)
            assert torch.equal(next_carried.rows[kind][is_own], total[kind][is_own])
            is_left_behind = torch.from_numpy(made_by[: shapes[kind][0]] > place)
            assert not next_carried.rows[kind][is_left_behind].any()
        assert torch.equal(next_carried.rows["sums"], total["sums"])
        carried = next_carried
