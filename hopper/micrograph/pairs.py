"""Pairs of roots: edges with labels, or links and what they are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Edges with labels; or links, each with other pairs that it should score higher than.

    Attributes
    ----------
    versions: by type, in the order of types that all have, [n] int64, ascending: the distinct
        ends, which are the roots.
    heads, tails: [links, 1 + k] int64: places of the ends among all ``versions``, those of one type
        behind those of another; column 0 is the link itself, and the only one of edges with labels.
    relations: [links] int64: which of the target relations each is of.
    labels: [links, 1 + k] float32: 1 for the link, 0 for what it is compared with, -1 for what does
        not count; of edges with labels [edges, 1 or classes], as stored.
    """

    versions: Mapping[str, Ids]
    heads: Ids
    tails: Ids
    relations: Ids
    labels: NDArray[Any]
