"""The least that a machine could take for parts of an iteration.

Operations over the rate of a large product, bytes over the rate of memory or of a link; the rates
of products and of memory are measured on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from hopper.models.gnn import layer_widths

_LARGE = 2048
"""rows and columns of a large product's matrices"""
_TABLE = 1 << 25
"""numbers of a table that no cache holds"""
_TURNS = 5
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Rates:
    """The rates of one core in a second.

    operations: of a large product, multiplications and additions. memory_bytes: read in order.
    """

    operations: float
    memory_bytes: float

    @classmethod
    def measure(cls) -> Rates:
        """Return the best of some turns, with one thread."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            matrix, table = torch.ones(_LARGE, _LARGE), torch.ones(_TABLE)
            product = _least(lambda: matrix @ matrix)
            return cls(2 * _LARGE**3 / product, table.nbytes / _least(table.sum))
        finally:
            torch.set_num_threads(threads)


def least_of_sage(
    layers: Sequence[Mapping[str, float]],
    widths: tuple[int, int, int],
    rates: Rates,
    link_bytes: float | None,
) -> dict[str, float]:
    """Return the seconds of a rank, by what they are spent on, of an iteration of GraphSAGE under
    cooperative.

    Parameters
    ----------
    layers: first layer first, what a plan's span says of each: own rows, destinations, and bytes
        that are received, gradients' way back included.
    widths: of the features, hidden, and of the logits.
    link_bytes: a second, of a host's link in each direction; None = no limit.
    """
    in_dim, hidden, out_dim = widths
    forward = backward = 0.0
    for index, (layer, (a, b)) in enumerate(
        zip(layers, layer_widths(in_dim, hidden, out_dim, len(layers)), strict=True)
    ):
        # The neighbours' matrix comes before their sum where that makes rows narrower.
        rows = (layer["own"] if a > b else layer["destinations"]) + layer["destinations"]
        operations = 2.0 * a * b * rows
        forward += operations
        # Gradients of the weights, and of the rows except in the first layer.
        backward += operations if index == 0 else 2 * operations
    table = layers[0]["own"] * in_dim * _FLOAT_BYTES
    seconds = {
        "products, forward": forward / rates.operations,
        "products, backward": backward / rates.operations,
        "reading input rows, twice": 2 * table / rates.memory_bytes,
    }
    if link_bytes is not None:
        # Rows are sent and received at the same time, and so are their gradients, later.
        seconds["messages"] = sum(layer["received_bytes"] for layer in layers) / link_bytes
    return seconds


def _least(work: Callable[[], object]) -> float:
    work()
    seconds = []
    for _ in range(_TURNS):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
