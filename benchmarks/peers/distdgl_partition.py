"""``python distdgl_partition.py GRAPH OUT METHOD SERVERS``: a graph directory of one relation, by
DGL's own ``dgl.distributed.partition_graph``."""

from __future__ import annotations

import sys
from pathlib import Path

import dgl
import numpy as np
import torch


def main(graph: Path, out: Path, method: str, servers: int) -> None:
    (folder,) = (file.parent for file in (graph / "topology").rglob("indptr.npy"))
    indptr, indices = (
        torch.from_numpy(np.load(folder / f"{name}.npy").astype(np.int64))
        for name in ("indptr", "indices")
    )
    dgl_graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
    dgl.distributed.partition_graph(
        dgl_graph, "graph", servers, str(out), part_method=method, num_hops=1
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
