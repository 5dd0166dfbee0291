"""``python distdgl_divide.py GRAPH OUT NAME [graphbolt]``: a graph that was handed out
(handed_graph.py) as DistDGL's partitions, every node on the server that it is told.

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


def read_graph(handed: Path, told: dict[str, Any]) -> Any:
    """DGL's graph of it, with features, labels and masks."""

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(np.load(handed / f"{name}.npy"))

    edges = {
        tuple(relation): (read(f"src-{place}"), read(f"dst-{place}"))
        for place, relation in enumerate(told["relations"])
    }
    counts = {name: kind["count"] for name, kind in told["types"].items()}
    if len(edges) == len(counts) == 1:
        graph = dgl.graph(next(iter(edges.values())), num_nodes=counts[told["target"]])
    else:
        graph = dgl.heterograph(edges, num_nodes_dict=counts)
    nodes = {name: graph.nodes[name].data if len(counts) > 1 else graph.ndata for name in counts}
    for name, kind in told["types"].items():
        if kind["dim"]:
            nodes[name]["feat"] = read(f"features-{name}")
    nodes[told["target"]]["label"] = read("labels").long()
    for split in ("train", "test"):
        mask = torch.zeros(counts[told["target"]], dtype=torch.bool)
        mask[read(split)] = True
        nodes[told["target"]][f"{split}_mask"] = mask
    return graph


def main(handed: Path, out: Path, name: str, *kinds: str) -> None:
    told = json.loads((handed / "graph.json").read_text())
    graph = read_graph(handed, told)
    types = graph.ntypes if len(told["types"]) > 1 else [told["target"]]
    homes = np.concatenate([np.load(handed / f"homes-{each}.npy") for each in types])
    module = dgl.distributed.partition
    module.metis_partition_assignment = lambda *_, **__: torch.from_numpy(homes.astype(np.int64))
    words = {"use_graphbolt": True} if "graphbolt" in kinds else {}
    module.partition_graph(
        graph, name, told["servers"], str(out), part_method="metis", num_hops=1, **words
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
