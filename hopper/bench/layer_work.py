"""How evenly an engine that divides layers among ranks divides them: read from a run's spans."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from hopper.errors import RequestError

MEASURES: Final = ("own", "destinations", "edges", "sent", "received")


class LayerWork(NamedTuple):
    """A layer's work, means of an iteration, in order of rank.

    own: rows that a rank prepares and projects. destinations, edges: what it aggregates. sent,
    received: rows or partial sums on the wire.
    """

    own: list[float]
    destinations: list[float]
    edges: list[float]
    sent: list[float]
    received: list[float]


def read_layer_work(spans: Path) -> list[LayerWork]:
    """Every layer's, in order of computation; empty where spans tell of no layers.

    Parameters
    ----------
    spans: a run's folder of them, a file a rank.

    Raises
    ------
    RequestError: a line is not one that Hopper wrote.
    """
    files = sorted(spans.glob("rank-*.jsonl"), key=lambda file: int(file.stem.split("-")[1]))
    by_rank = [_read_rank(file) for file in files]
    layers = min((len(found) for found in by_rank), default=0)
    return [
        LayerWork(*([found[layer][measure] for found in by_rank] for measure in MEASURES))
        for layer in range(layers)
    ]


def unevenness(by_rank: Sequence[float]) -> float | None:
    """The busiest rank over the mean; None where nobody has anything to do."""
    mean = fmean(by_rank)
    return max(by_rank) / mean if mean else None


def _read_rank(file: Path) -> list[dict[str, float]]:
    sums: defaultdict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(MEASURES, 0.0))
    iterations = 0
    with file.open() as lines:
        for number, line in enumerate(lines, 1):
            if '"layers"' not in line:
                continue
            iterations += 1
            try:
                for layer, own in enumerate(json.loads(line)["layers"]):
                    for measure in MEASURES:
                        sums[layer][measure] += float(own[measure])
            except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise RequestError(
                    f"{file}, line {number}: layers: expected {', '.join(MEASURES)} of each "
                    f"({type(error).__name__}: {error})"
                ) from error
    return [
        {measure: value / iterations for measure, value in sums[layer].items()}
        for layer in sorted(sums)
    ]
