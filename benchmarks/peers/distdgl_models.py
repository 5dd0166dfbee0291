"""Models of DGL's own layers, the same in widths as Hopper's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dgl
import torch
from torch import nn
from torch.nn import functional


class Stack(nn.Module):
    """GraphSAGE (mean) or GAT.

    Parameters
    ----------
    job: ``model``, ``in_dim``, ``hidden`` (of a head), ``heads``, ``classes``, ``fanouts``.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        layers = len(job["fanouts"])
        self.is_gat = job["model"] == "gat"
        heads = job["heads"] if self.is_gat else 1
        widths = [job["in_dim"], *[job["hidden"] * heads] * (layers - 1)]
        outs = [*[job["hidden"]] * (layers - 1), job["classes"]]
        self.layers = nn.ModuleList(
            dgl.nn.GATConv(a, b, heads, allow_zero_in_degree=True)
            if self.is_gat
            else dgl.nn.SAGEConv(a, b, "mean")
            for a, b in zip(widths, outs, strict=True)
        )

    def forward(self, blocks: list[Any], x: torch.Tensor) -> torch.Tensor:
        for index, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x, last = layer(block, x), index == len(self.layers) - 1
            if self.is_gat:
                x = x.mean(1) if last else functional.elu(x.flatten(1))
            elif not last:
                x = torch.relu(x)
        return x


class RGCN(nn.Module):
    """R-GCN over rows that a matrix of each node type brings to one width; learned rows have it
    from the start.

    Parameters
    ----------
    job: as that of :class:`Stack`, and ``target``, ``types`` (by name, ``dim``), ``relations``, and
        ``head``: whether the last layer is as wide as the others, and a linear classifier follows.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        hidden, layers = job["hidden"], len(job["fanouts"])
        self.target = job["target"]
        self.inputs = nn.ModuleDict(
            {name: nn.Linear(kind["dim"], hidden)
             for name, kind in job["types"].items() if kind["dim"]}
        )  # fmt: skip
        widths = [*[hidden] * layers, hidden if job["head"] else job["classes"]]
        self.head = nn.Linear(hidden, job["classes"]) if job["head"] else None
        names = {rel for _, rel, _ in job["relations"]}
        self.layers = nn.ModuleList(
            dgl.nn.HeteroGraphConv(
                {rel: dgl.nn.GraphConv(a, b, norm="right", bias=False, allow_zero_in_degree=True)
                 for rel in names},
                aggregate="sum",
            )
            for a, b in pairwise(widths)
        )  # fmt: skip
        self.projections = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(a, b) for name in job["types"]})
            for a, b in pairwise(widths)
        )

    def forward(self, blocks: list[Any], x: dict[str, torch.Tensor]) -> torch.Tensor:
        x = {
            name: self.inputs[name](rows.float()) if name in self.inputs else rows
            for name, rows in x.items()
        }
        for index, (layer, projections, block) in enumerate(
            zip(self.layers, self.projections, blocks, strict=True)
        ):
            sums = layer(block, x)
            new_rows = {}
            for name in block.dsttypes:
                count = block.num_dst_nodes(name)
                if count:
                    new_rows[name] = projections[name](x[name][:count]) + sums.get(name, 0)
            is_last = index == len(blocks) - 1 and self.head is None
            x = new_rows if is_last else {name: torch.relu(rows) for name, rows in new_rows.items()}
        rows = x[self.target]
        return rows if self.head is None else self.head(rows)


def make_model(job: dict[str, Any]) -> nn.Module:
    """Return the model of a job."""
    return RGCN(job) if job["model"] == "rgcn" else Stack(job)
