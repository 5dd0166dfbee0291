"""METIS through DGL or pymetis, as a program: ``python -m hopper.partition.metis``.

It runs in a process of its own (hopper.partition.metis_process says why), on arrays in a folder.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import key_of
from cache_server.process import end_with_parent
from hopper.partition.symmetrise import Adjacency
from hopper.quick_imports import quick_imports


def divide_dgl(
    adjacency: Adjacency, weights: NDArray[np.int64], servers: int
) -> NDArray[np.int64] | None:
    """Return [nodes] int64: the server of each node, by DGL's METIS; None if it failed.

    DGL's ``metis_partition_assignment`` balances only classes of nodes and degrees, so this calls
    the functions that it calls. DGL gives METIS no seed and no weights of edges.

    Parameters
    ----------
    weights: [nodes, constraints] int64.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")
    with quick_imports():
        dgl, torch = importlib.import_module("dgl"), importlib.import_module("torch")
    no_edge_ids = torch.empty(0, dtype=torch.int64)
    parts = (torch.from_numpy(adjacency.indptr), torch.from_numpy(adjacency.indices), no_edge_ids)
    calls, backend = (importlib.import_module(f"dgl.{name}") for name in ("partition", "backend"))
    graph = dgl.graph(("csc", parts), num_nodes=adjacency.nodes)._graph
    flat = backend.to_dgl_nd(torch.from_numpy(weights.reshape(-1)))
    symmetric = calls._CAPI_DGLMakeSymmetric_Hetero(graph)
    homes = calls._CAPI_DGLMetisPartition_Hetero(symmetric, servers, flat, "k-way", True)
    return homes.asnumpy() if len(homes) else None


def divide_pymetis(
    adjacency: Adjacency, weights: NDArray[np.int64], servers: int, seed: int
) -> NDArray[np.int64]:
    """Return [nodes] int64: the server of each node, by pymetis.

    Parameters
    ----------
    weights: [nodes, 1] int64. Of several constraints pymetis would read the first numbers as one.
    """
    pymetis = importlib.import_module("pymetis")
    # Releases before 2025.2 take two arrays, later ones an object with both.
    graph: dict[str, Any] = {"xadj": adjacency.indptr, "adjncy": adjacency.indices}
    if hasattr(pymetis, "CSRAdjacency"):
        graph = {"adjacency": pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices)}
    # C's generator treats 0 and 1 as the same seed, so seeds are hashed first.
    options = pymetis.Options(seed=1 + key_of(seed) % (2**31 - 1))
    _, homes = pymetis.part_graph(
        servers, vweights=weights[:, 0], recursive=False, options=options, **graph
    )
    return np.asarray(homes, dtype=np.int64)


def main() -> None:
    """Read indptr, indices and weights of a folder; fill homes, which has its room on the disk."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("backend", choices=["dgl", "pymetis"])
    parser.add_argument("servers", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--die-with-parent", type=int, required=True)
    arguments = parser.parse_args()
    end_with_parent(arguments.die_with_parent, signal.SIGKILL)

    def load(name: str, mode: Literal["c", "r+"] = "c") -> NDArray[Any]:
        # By default private writable maps: torch accepts no read-only arrays.
        file = arguments.folder / f"{name}.npy"
        return np.asarray(np.load(file, mmap_mode=mode, allow_pickle=False))

    adjacency, weights = Adjacency(load("indptr"), load("indices")), load("weights")
    if arguments.backend == "dgl":
        homes = divide_dgl(adjacency, weights, arguments.servers)
    else:
        homes = divide_pymetis(adjacency, weights, arguments.servers, arguments.seed)
    if homes is None:
        sys.exit("METIS found no division")
    load("homes", "r+")[:] = homes


if __name__ == "__main__":
    main()
