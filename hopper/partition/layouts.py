"""The layouts of partitioned graphs, by name.

Under :class:`Replicated`, nodes are divided and every server has all topology. Under
:class:`DividedTopology`, a server has the in-edges of its nodes and its halo. Under
:class:`ByDimension`, features are divided by dimension. Under :class:`ByRelation`, whole relations
are divided.
"""

from __future__ import annotations

from typing import Final

from hopper.partition.by_dimension import ByDimension
from hopper.partition.by_node import DividedTopology, Replicated
from hopper.partition.by_relation import ByRelation
from hopper.partition.layout import Layout

LAYOUTS: Final[dict[str, type[Layout]]] = {
    layout.name: layout for layout in (Replicated, DividedTopology, ByDimension, ByRelation)
}
"""The layouts by their names in partition.json."""
