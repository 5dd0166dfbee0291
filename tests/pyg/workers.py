"""Reads epochs by workers of PyG's loader: workers.py PARTS ADDRESS ..."""

import json
import sys

import torch
from torch_geometric.loader import NodeLoader

import hopper
from hopper.pyg import FeatureStore, GraphStore, Sampler


def count_roots(graph: hopper.ConnectedGraph, context: str) -> int:
    loader = NodeLoader(
        (FeatureStore(graph), GraphStore(graph)),
        node_sampler=Sampler(graph, [3, 3]),
        input_nodes=("paper", torch.from_numpy(graph.graph.split("train").copy())),
        batch_size=10,
        # A spawned one imports PyG anew.
        num_workers=1 if context == "spawn" else 2,
        multiprocessing_context=context,
    )
    return sum(batch["paper"].batch_size for batch in loader)


def main() -> None:
    with hopper.connect(sys.argv[1], sys.argv[2:]) as graph:
        counts = {context: count_roots(graph, context) for context in ("fork", "spawn")}
        graph.sampler([2]).sample(graph.graph.global_ids("paper")[:5], 0, 0)
        try:
            said = str(count_roots(graph, "fork"))
        except hopper.RequestError as error:
            said = str(error)
    print(json.dumps({**counts, "drew": said}))


if __name__ == "__main__":
    main()
