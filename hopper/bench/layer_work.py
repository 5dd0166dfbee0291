"""How evenly an engine that divides layers among ranks divides them: read from a run's spans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from hopper.bench.span_lines import log_files, log_lines
from hopper.errors import RequestError

MEASURES: Final = ("own", "destinations", "edges", "sent", "received")

Layers = list[dict[str, float]]


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
    RequestError: a line is not one that Hopper wrote, or ranks tell of different layers.
    """
    by_rank = [_read_rank(file) for file in log_files(spans)]
    counts = {len(found) for found in by_rank} or {0}
    if len(counts) > 1:
        raise RequestError(f"{spans}: layers: expected as many of every rank, given {counts}")
    return [
        LayerWork(*([found[layer][measure] for found in by_rank] for measure in MEASURES))
        for layer in range(counts.pop())
    ]


def unevenness(by_rank: Sequence[float]) -> float | None:
    """The busiest rank over the mean; None where nobody has anything to do."""
    mean = fmean(by_rank)
    return max(by_rank) / mean if mean else None


def _read_rank(file: Path) -> Layers:
    """Means of an iteration; what a resumed run wrote anew replaces the old."""
    moments: dict[tuple[Any, Any], Layers] = {}
    for number, line in log_lines(file):
        if "layers" in line:
            moments[line.get("epoch"), line.get("iteration")] = _checked(file, number, line)
    found = list(moments.values())
    counts = {len(layers) for layers in found} or {0}
    if len(counts) > 1:
        raise RequestError(f"{file}: layers: expected as many in every iteration, given {counts}")
    return [
        {measure: fmean(layers[layer][measure] for layers in found) for measure in MEASURES}
        for layer in range(counts.pop())
    ]


def _checked(file: Path, number: int, line: dict[str, Any]) -> Layers:
    try:
        return [{each: float(layer[each]) for each in MEASURES} for layer in line["layers"]]
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f"{file}: line {number}: layers: expected {', '.join(MEASURES)} of each "
            f"({type(error).__name__}: {error})"
        ) from error
