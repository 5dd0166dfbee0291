"""Split labelled nodes at random, as a pure function of seed and ids, or by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import SYNTHESIS, absorb_each, key_of
from hopper.errors import RequestError
from hopper.graph.check_values import is_labelled
from hopper.graph.schema import Labels

_STREAM = int.from_bytes(b"split", "little")


@dataclass(frozen=True)
class RandomSplit:
    """Numbers of training and validation nodes to draw; the other labelled nodes are for testing.

    Integers are nodes per class, as in the protocol of Shchur et al., "Pitfalls of Graph Neural
    Network Evaluation", section 4 (20 and 30). Fractions are shares of all labelled nodes. By time,
    the earliest nodes are for training and the latest for testing, and nodes of the same time stay
    together.
    """

    train: int | float
    val: int | float
    by_time: bool = False

    @classmethod
    def parse(cls, text: str) -> RandomSplit:
        """Parse ``random:20:30`` (nodes per class), ``random:0.6:0.2`` (fractions) or
        ``time:0.6:0.2``.

        Raises
        ------
        RequestError: anything else.
        """
        words = text.split(":")
        try:
            kind, first, second = words
            train, val = (float(x) if "." in x else int(x) for x in (first, second))
        except ValueError:
            kind, train, val = "", 0, 0
        fractions = isinstance(train, float) and isinstance(val, float) and train + val <= 1
        counts = isinstance(train, int) and isinstance(val, int)
        is_known = (kind == "random" and (fractions or counts)) or (kind == "time" and fractions)
        if not is_known or train <= 0 or val < 0:
            raise RequestError(
                "--split: expected random:TRAIN:VAL, nodes per class (random:20:30) or fractions "
                "of the labelled nodes (random:0.6:0.2), or fractions in order of time "
                f"(time:0.6:0.2), given {text!r}"
            )
        return cls(train, val, by_time=kind == "time")


def draw_split(
    split: RandomSplit, labels: Labels, values: NDArray[Any], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Draw ``train``, ``val`` and ``test``.

    Nodes are taken in the order of (variate of the node, node), so the split depends on seed,
    labels and ids alone.

    Parameters
    ----------
    values: the labels, as a graph directory holds them.

    Returns
    -------
    Ascending ids by the split's name. Unlabelled nodes (class -1, float NaN) are in no split.

    Raises
    ------
    RequestError: nodes per class are asked for labels that are not classes, or a class has too
        few nodes.
    """
    ids = np.flatnonzero(is_labelled(labels, values)).astype(np.int64)
    keys = absorb_each(np.uint64(key_of(SYNTHESIS, _STREAM, seed)), ids)
    order = ids[np.lexsort((ids, keys))]
    if isinstance(split.train, float):
        ends = [round(split.train * ids.size), round((split.train + split.val) * ids.size)]
        parts = np.split(order, ends)
    else:
        parts = _draw_per_class(split, labels, values, order)
    return {name: np.sort(part) for name, part in zip(("train", "val", "test"), parts, strict=True)}


def split_by_time(
    split: RandomSplit, times: NDArray[np.int64], has_label: NDArray[np.bool_]
) -> dict[str, NDArray[np.int64]]:
    """Divide nodes or edges into ``train``, ``val`` and ``test`` in order of time.

    Parameters
    ----------
    times: [n] int64, times of nodes or edges.
    has_label: [n] bool, the nodes or edges to divide.
    """
    ids = np.flatnonzero(has_label).astype(np.int64)
    order = ids[np.argsort(times[ids], kind="stable")]
    ends = [round(share * ids.size) for share in (split.train, split.train + split.val)]
    # All of the same time go to the earlier split.
    cuts = [
        int(np.searchsorted(times[order], times[order[end - 1]], side="right")) if end else 0
        for end in ends
    ]
    parts = np.split(order, cuts)
    return {name: np.sort(part) for name, part in zip(("train", "val", "test"), parts, strict=True)}


def _draw_per_class(
    split: RandomSplit, labels: Labels, values: NDArray[Any], order: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    if labels.kind != "class":
        raise RequestError(
            f"--split: nodes per class need class labels, given {labels.kind} labels; "
            "ask for fractions (random:0.6:0.2)"
        )
    train, val = int(split.train), int(split.val)
    parts: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for label in range(labels.classes):
        nodes = order[values[order] == label]
        if nodes.size < train + val:
            raise RequestError(
                f"--split: class {label}: expected at least {train} + {val} nodes, "
                f"given {nodes.size}"
            )
        for part, class_nodes in zip(parts, np.split(nodes, [train, train + val]), strict=True):
            part.append(class_nodes)
    return [np.concatenate(part) for part in parts]
