"""PyTorch Geometric's layers on the same batches, where ``torch_geometric`` is installed.

``RGCNConv`` is a loop over relations (HiFuse's baseline), ``FastRGCNConv`` takes a matrix per edge,
``HeteroConv`` of ``SAGEConv`` a convolution a relation, which makes rows of all nodes of a batch.
The first two compute what ``rgcn`` does. ``RGATConv`` attends as ``rgat`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.layers.batches import Workload
from benchmarks.layers.sides import HopperSide, LayerSide
from hopper.graph.block import TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.subgraph import Subgraph

MOST_NUMBERS: Final = 600_000_000
"""of a matrix per edge: beyond it a side is left out"""


class StackedHop:
    """A hop as PyG's relational convolutions want it: nodes of all types behind one another.

    ``edge_index`` is [2, edges], ``edge_type`` [edges], ``destinations`` the number of all types';
    ``places`` says by type which destinations are its own.
    """

    def __init__(self, hop: TypedBlocks, relations: Mapping[Relation, int]) -> None:
        types = sorted(hop.sources)
        sources = _starts({name: hop.sources[name] for name in types})
        ends = _starts({name: hop.destinations[name] for name in types})
        self.destinations = sum(hop.destinations[name] for name in types)
        edges, kinds = [], []
        for relation, block in hop.blocks.items():
            rows = block.indices + sources[relation.src]
            edges.append(torch.stack((rows, block.destinations() + ends[relation.dst])))
            kinds.append(torch.full_like(block.indices, relations[relation]))
        self.edge_index, self.edge_type = torch.cat(edges, 1), torch.cat(kinds)
        self.places = {name: slice(ends[name], ends[name] + hop.destinations[name])
                       for name in types}  # fmt: skip


def _starts(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))


class StackedSide(LayerSide):
    """Two of PyG's convolutions over stacked nodes; ``make`` gets the widths of rows and results,
    and the number of relations."""

    def __init__(self, work: Workload, make: Callable[[int, int, int], nn.Module]) -> None:
        self._relations = number_relations(work)
        self.convolutions = nn.ModuleList(
            make(work.hidden, width, len(self._relations)) for width in (work.hidden, work.classes)
        ).to(work.device)
        super().__init__(work, self.convolutions)
        self._rows = [torch.cat([rows[name] for name in sorted(rows)]) for rows in work.rows]

    def prepare(self, batch: int, subgraph: Subgraph) -> list[StackedHop]:
        """Copy a batch to the device, and stack the edges of its relations."""
        return [StackedHop(hop, self._relations) for hop in subgraph.typed_blocks(self.work.device)]

    def forward(self, batch: int, prepared: list[StackedHop]) -> Tensor:
        """Compute the logits with one convolution over stacked edges."""
        h = self._rows[batch]
        for index, (convolution, hop) in enumerate(zip(self.convolutions, prepared, strict=True)):
            h = convolution((h, h[: hop.destinations]), hop.edge_index, hop.edge_type)
            if index == 0:
                h = h.relu()
        return h[prepared[-1].places[self.work.target]]

    def take_weights(self, hopper_side: HopperSide) -> None:
        """Copy the matrices of Hopper's R-GCN, so that logits can be compared."""
        with torch.no_grad():
            for index, convolution in enumerate(self.convolutions):
                layer, weight = hopper_side.model.relation_layer(index), convolution.weight
                assert isinstance(weight, Tensor)
                for relation, place in number_relations(self.work).items():
                    if relation in layer.relations:
                        linear: Any = layer.aggregation(relation).weight
                        weight[place] = linear.weight.t()


class HeteroSide(LayerSide):
    """PyG's HeteroConv: a convolution a relation, over dictionaries."""

    def __init__(self, work: Workload) -> None:
        from torch_geometric.nn import HeteroConv, SAGEConv

        names = {r: (r.src, r.rel.replace(".", "_"), r.dst) for r in number_relations(work)}
        widths = (work.hidden, work.hidden)

        def make(width: int) -> HeteroConv:
            plain = {"root_weight": False, "bias": False}
            convolutions = {name: SAGEConv(widths, width, **plain) for name in names.values()}
            return HeteroConv(convolutions, aggr="sum")

        self.convolutions = nn.ModuleList(map(make, (work.hidden, work.classes))).to(work.device)
        super().__init__(work, self.convolutions)
        self._names = names

    def prepare(self, batch: int, subgraph: Subgraph) -> list[dict[Any, Tensor]]:
        """Copy a batch's edges to the device, by relation."""
        return [
            {
                self._names[relation]: torch.stack((block.indices, block.destinations()))
                for relation, block in hop.blocks.items()
                if block.num_edges
            }
            for hop in subgraph.typed_blocks(self.work.device)
        ]

    def forward(self, batch: int, prepared: list[dict[Any, Tensor]]) -> Tensor:
        """Compute the logits relation by relation."""
        h: dict[str, Tensor] = {n: x for n, x in self.work.rows[batch].items() if len(x)}
        for index, (convolution, edges) in enumerate(zip(self.convolutions, prepared, strict=True)):
            rows = convolution(h, edges)
            h = h | {name: x.relu() for name, x in rows.items()} if index == 0 else rows
        return h[self.work.target][: self.work.batches[batch].num_roots]


def number_relations(work: Workload) -> dict[Relation, int]:
    """Return the graph's relations, each with its number."""
    return {relation: place for place, relation in enumerate(sorted(work.graph.schema.relations))}


def pyg_sides(work: Workload) -> dict[str, LayerSide]:
    """Return the sides that PyG offers for the batches' model, by class name; none if PyG is not
    installed."""
    try:
        from torch_geometric.nn import FastRGCNConv, RGATConv, RGCNConv
    except ImportError:
        return {}
    most = max(batch.num_edges for batch in work.batches) * work.hidden * work.hidden
    has_memory = most <= MOST_NUMBERS
    model = work.config.model.name
    sides: dict[str, LayerSide] = {}
    if model == "rgat" and has_memory:
        ways = {"mechanism": "within-relation", "mode": "additive-self-attention"}
        options: dict[str, Any] = {f"attention_{key}": way for key, way in ways.items()}
        sides["RGATConv"] = StackedSide(work, partial(RGATConv, heads=1, dim=1, **options))
    if model == "rgcn":
        plain = {"root_weight": False, "bias": False}
        sides["RGCNConv"] = StackedSide(work, partial(RGCNConv, **plain))
        sides["HeteroConv"] = HeteroSide(work)
        if has_memory:
            sides["FastRGCNConv"] = StackedSide(work, partial(FastRGCNConv, **plain))
    return sides


def difference(logits: Tensor, expected: Tensor) -> float:
    """Return the largest difference of logits, over the largest of those expected."""
    return float((logits - expected).abs().max() / expected.abs().max())
