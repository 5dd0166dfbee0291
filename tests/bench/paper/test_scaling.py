"""Speed-ups compare roots per second with those of the fewest servers."""

from __future__ import annotations

from typing import Any

from benchmarks.paper.scaling import count_roots, scaling_table
from hopper.config import Config
from hopper.partition import PartitionedGraph


def make_cell(servers: int, seconds: float) -> dict[str, Any]:
    sides = {
        role: {"label": label, "seconds": seconds, "iterations": 2.0}
        for role, label in (("own", "locality"), ("all", "model_centric:pipeline.depth=0"))
    }
    roots = {"model_centric": 10.0 * servers, "locality": 8.0 * servers}
    names = {"name": f"cell-{servers}", "graph": "g", "model": "m", "hidden": 8}
    return {**names, "servers": servers, "sides": sides, "extra": {"roots": roots}}


def test_speed_up_is_in_roots_a_second_over_the_fewest_servers() -> None:
    result = {"cells": [make_cell(4, 0.5), make_cell(2, 1.0)]}
    assert scaling_table(result).rows == [
        ["cell-2", "own", "2", "32", "1", "1"],
        ["cell-4", "own", "4", "128", "4", "2"],
        ["cell-2", "all", "2", "40", "1", "1"],
        ["cell-4", "all", "4", "160", "4", "2"],
    ]


def test_roots_are_those_that_schedules_deal(
    tiny_config: Config, tiny_graph: PartitionedGraph
) -> None:
    # 130 roots, 50 an iteration: two whole batches and a short one; own roots are dealt evenly.
    all_roots = count_roots(tiny_config, tiny_graph)["roots"]
    assert all_roots["model_centric"] == all_roots["locality"] == 130 / 3
    train = tiny_config.train.model_copy(update={"iterations_per_epoch": 2})
    first_roots = count_roots(tiny_config.model_copy(update={"train": train}), tiny_graph)["roots"]
    assert first_roots["model_centric"] == 50
    assert 42 <= first_roots["locality"] <= 44
