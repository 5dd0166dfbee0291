"""A pipeline's seconds are compared with the longest of the stages that it overlaps."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.paper.pipeline import ideal_table


def make_side(seconds: float, cpu: float, **stages: float) -> dict[str, Any]:
    names = ("sample", "gather", "compute", "migrate", "sync", "wait")
    return {
        "seconds": seconds,
        "iterations": 2.0,
        "ranks": 4,
        "busiest_cpu_seconds": cpu,
        "stage_seconds": dict.fromkeys(names, 0.0) | stages,
    }


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [(0.25, ["read, 0.5", "0.25", "0.8", "62.5%"]), (0.6, ["read, 0.5", "0.6", "0.8", "75.0%"])],
)
def test_the_ideal_is_the_slowest_stage_or_the_processors(cpu: float, expected: list[str]) -> None:
    sides = {
        "hop, off": make_side(2.4, 0.1, sample=0.4, gather=1.0, compute=0.6, sync=0.2, wait=0.1),
        "hop, on": make_side(1.6, cpu, gather=1.4),
    }
    result = {"machine": {"usable_cores": 2}, "cells": [{"name": "cell", "sides": sides}]}
    assert ideal_table(result).rows == [["cell", "hop, on", "1.2", *expected]]
