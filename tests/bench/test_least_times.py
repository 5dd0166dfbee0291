"""The least seconds of an iteration of GraphSAGE are those counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.least_times import Rates, least_of_sage

LAYERS = [
    {"own": 100.0, "destinations": 40.0, "received_bytes": 300.0},
    {"own": 40.0, "destinations": 10.0, "received_bytes": 100.0},
]


def test_least_times_of_two_layers() -> None:
    rates = Rates(operations=1000.0, memory_bytes=80.0)
    # The second layer makes rows wider, so it adds neighbours up before it multiplies.
    least = least_of_sage(LAYERS, (6, 2, 3), rates, link_bytes=50.0)
    first, second = 2 * 6 * 2 * (100 + 40), 2 * 2 * 3 * (10 + 10)
    assert least["products, forward"] == pytest.approx((first + second) / 1000)
    assert least["products, backward"] == pytest.approx((first + 2 * second) / 1000)
    assert least["reading input rows, twice"] == pytest.approx(2 * 100 * 6 * 4 / 80)
    assert least["messages"] == pytest.approx(400 / 50)
    assert "messages" not in least_of_sage(LAYERS, (6, 2, 3), rates, None)


def test_rates_are_measured() -> None:
    rates = Rates.measure()
    assert rates.operations > 1e8
    assert rates.memory_bytes > 1e8
