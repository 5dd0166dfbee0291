"""The balance of an engine that divides layers among ranks, read from a run's spans."""

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
    """Read the work of every layer, in the order of computation.

    Parameters
    ----------
    spans: the folder with a file of spans for each rank.

    Returns
    -------
    One entry for each layer. Empty if the spans do not mention layers.

    Raises
    ------
    RequestError: a line is not valid, or ranks have different numbers of layers.
    """
    by_rank = [_read_rank(file) for file in log_files(spans)]
    counts = {len(layers) for layers in by_rank} or {0}
    if len(counts) > 1:
        raise RequestError(f"{spans}: layers: expected as many of every rank, given {counts}")
    return [
        LayerWork(
            *([rank_layers[layer][measure] for rank_layers in by_rank] for measure in MEASURES)
        )
        for layer in range(counts.pop())
    ]


def unevenness(by_rank: Sequence[float]) -> float | None:
    """Return the work of the busiest rank divided by the mean. None if there is no work."""
    mean = fmean(by_rank)
    return max(by_rank) / mean if mean else None


def _read_rank(file: Path) -> Layers:
    """Read a rank's means over iterations. Lines of a resumed run replace older ones."""
    moments: dict[tuple[Any, Any], Layers] = {}
    for number, line in log_lines(file):
        if "layers" in line:
            moments[line.get("epoch"), line.get("iteration")] = _check_layers(file, number, line)
    iterations = list(moments.values())
    counts = {len(layers) for layers in iterations} or {0}
    if len(counts) > 1:
        raise RequestError(f"{file}: layers: expected as many in every iteration, given {counts}")
    return [
        {measure: fmean(layers[layer][measure] for layers in iterations) for measure in MEASURES}
        for layer in range(counts.pop())
    ]


def _check_layers(file: Path, number: int, line: dict[str, Any]) -> Layers:
    try:
        return [
            {measure: float(layer[measure]) for measure in MEASURES} for layer in line["layers"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f"{file}: line {number}: layers: expected {', '.join(MEASURES)} of each "
            f"({type(error).__name__}: {error})"
        ) from error
