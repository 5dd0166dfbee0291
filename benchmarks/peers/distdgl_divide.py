"""``python distdgl_divide.py GRAPH OUT NAME [graphbolt]``: a graph that was handed out
(distdgl.py) as DistDGL's partitions, every node on the server that it is told.

With the last word, topology is GraphBolt's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch


def read_graph(handed: Path, description: dict[str, Any]) -> Any:
    """Read the graph that was handed out as a graph of DGL, with features, labels and masks."""

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(np.load(handed / f"{name}.npy"))

    edges = {
        tuple(relation): (read(f"src-{place}"), read(f"dst-{place}"))
        for place, relation in enumerate(description["relations"])
    }
    counts = {name: kind["count"] for name, kind in description["types"].items()}
    if len(edges) == len(counts) == 1:
        graph = dgl.graph(next(iter(edges.values())), num_nodes=counts[description["target"]])
    else:
        graph = dgl.heterograph(edges, num_nodes_dict=counts)
    nodes = {name: graph.nodes[name].data if len(counts) > 1 else graph.ndata for name in counts}
    for name, kind in description["types"].items():
        if kind["dim"]:
            nodes[name]["feat"] = read(f"features-{name}")
    nodes[description["target"]]["label"] = read("labels").long()
    for split in ("train", "test"):
        mask = torch.zeros(counts[description["target"]], dtype=torch.bool)
        mask[read(split)] = True
        nodes[description["target"]][f"{split}_mask"] = mask
    return graph


def main(handed: Path, out: Path, name: str, *kinds: str) -> None:
    description = json.loads((handed / "graph.json").read_text())
    graph = read_graph(handed, description)
    types = graph.ntypes if len(description["types"]) > 1 else [description["target"]]
    homes = np.concatenate([np.load(handed / f"homes-{node_type}.npy") for node_type in types])
    module = dgl.distributed.partition
    module.metis_partition_assignment = lambda *_, **__: torch.from_numpy(homes.astype(np.int64))
    words = {"use_graphbolt": True} if "graphbolt" in kinds else {}
    module.partition_graph(
        graph, name, description["servers"], str(out), part_method="metis", num_hops=1, **words
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
