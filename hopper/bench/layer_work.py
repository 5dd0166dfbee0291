"""The balance of an engine that divides layers among ranks, read from a run's spans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from hopper.bench.span_lines import log_files, log_lines
from hopper.errors import RequestError


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


MEASURES = LayerWork._fields


def read_layer_work(spans: Path) -> list[LayerWork]:
    """Read the work of every layer, in the order of computation, from a folder with a file of
    spans for each rank. Empty if the spans do not mention layers.
    """
    by_rank = [_read_rank(file) for file in log_files(spans)]
    _check_counts(f"{spans}: layers: expected as many of every rank", by_rank)
    return [
        LayerWork(*([layer[index] for layer in ranks] for index in range(len(MEASURES))))
        for ranks in zip(*by_rank, strict=True)
    ]


def unevenness(by_rank: Sequence[float]) -> float | None:
    """Return the work of the busiest rank divided by the mean. None if there is no work."""
    mean = fmean(by_rank)
    return max(by_rank) / mean if mean else None


def _read_rank(file: Path) -> list[list[float]]:
    """Read a rank's measures by layer, means over iterations. Lines of a resumed run replace older
    ones."""
    moments: dict[tuple[Any, Any], list[list[float]]] = {}
    for number, line in log_lines(file):
        if "layers" in line:
            try:
                layers = [[float(layer[name]) for name in MEASURES] for layer in line["layers"]]
            except (KeyError, TypeError, ValueError) as error:
                raise RequestError(
                    f"{file}: line {number}: layers: expected {', '.join(MEASURES)} of each "
                    f"({type(error).__name__}: {error})"
                ) from error
            moments[line.get("epoch"), line.get("iteration")] = layers
    iterations = list(moments.values())
    _check_counts(f"{file}: layers: expected as many in every iteration", iterations)
    return [
        [fmean(values) for values in zip(*layer, strict=True)]
        for layer in zip(*iterations, strict=True)
    ]


def _check_counts(expectation: str, lists: Sequence[Sequence[Any]]) -> None:
    counts = {len(layers) for layers in lists}
    if len(counts) > 1:
        raise RequestError(f"{expectation}, given {counts}")
