"""Pairs of roots: labelled edges, or links with their negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Labelled edges; or links, each with k negatives that it should score higher than.

    Attributes
    ----------
    versions: by node type, in the order that all ranks use, [n] int64, ascending: the distinct
        ends, which are the roots.
    heads, tails: [links, 1 + k] int64, indices of the ends in the concatenated ``versions``. Column
        0 is the link itself. Labelled edges have this column only.
    relations: [links] int64, index of each link's relation among the target relations.
    labels: of links [links, 1 + k] float32: 1 for the link, 0 for a negative, -1 for a pair that
        does not count. Of labelled edges [edges, 1 or classes], as stored.
    """

    versions: Mapping[str, Ids]
    heads: Ids
    tails: Ids
    relations: Ids
    labels: NDArray[Any]
