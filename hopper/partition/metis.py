"""METIS through DGL or pymetis, in a process of its own: ``python -m hopper.partition.metis``.

METIS divides the undirected simple graph of all node types and relations (DistDGLv2, section
4.1.1). It ends its process when it runs out of memory, and prints to the terminal from C. DGL's
METIS also reads memory that it never wrote, so its result for one graph varies. In another process,
the end becomes an error with a text, and the prints become part of it. The allocator of that
process returns zeroed memory, so the result does not vary. Arrays pass through files.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import key_of
from cache_server.process import end_with_parent
from hopper.errors import RequestError, cannot_import
from hopper.files.scratch import scratch_folder
from hopper.graph.array_file import create_array, save_array
from hopper.graph.directory import GraphDirectory
from hopper.graph.topology import Ids
from hopper.partition.stacked_ids import count_nodes, iter_edges, type_slices
from hopper.process.quick_imports import quick_imports

Backend = Literal["dgl", "pymetis"]

# glibc fills new memory with the complement of "perturb", except from its thread cache.
_ZEROED: Final = "glibc.malloc.perturb=255:glibc.malloc.tcache_count=0"


class Adjacency(NamedTuple):
    """An undirected simple graph over stacked ids; every edge is in the rows of both ends."""

    indptr: Ids
    """[nodes + 1] int64"""
    indices: Ids
    """[2 * undirected edges] int64, ascending within a row"""

    @property
    def nodes(self) -> int:
        """Number of nodes of all types."""
        return self.indptr.size - 1


def symmetrize(graph: GraphDirectory) -> Adjacency:
    """Make one undirected edge of all edges between two nodes, without self-loops."""
    schema, nodes = graph.schema, count_nodes(graph.schema)
    ids_of, written = type_slices(schema), 0
    # Of every edge, row * nodes + column, and the same of its reverse.
    pairs = np.empty(2 * sum(kind.count for kind in schema.relations.values()), np.int64)
    for relation in schema.relations:
        for _, src, dst in iter_edges(graph.topology(relation)):
            src, dst = src + ids_of[relation.src].start, dst + ids_of[relation.dst].start
            for rows, columns in ((src, dst), (dst, src)):
                chosen = (rows * nodes + columns)[src != dst]
                pairs[written : written + chosen.size] = chosen
                written += chosen.size
    pairs = pairs[:written]
    pairs.sort()
    is_first = np.ones(written, np.bool_)
    np.not_equal(pairs[1:], pairs[:-1], out=is_first[1:])
    pairs = pairs[is_first]
    indptr = np.searchsorted(pairs, np.arange(nodes + 1) * nodes)
    return Adjacency(indptr, np.remainder(pairs, nodes, out=pairs))


def choose_backend(name: str = "auto") -> Backend:
    """Choose the METIS to use: DGL's if it is installed, otherwise pymetis."""
    if name not in ("auto", "dgl", "pymetis"):
        raise RequestError(f"METIS backend: expected auto, dgl or pymetis, given {name!r}")
    candidates: tuple[Backend, ...] = ("dgl", "pymetis")
    for backend in candidates:
        if name in ("auto", backend) and _is_installed(backend):
            return backend
    library = "dgl" if name == "dgl" else "pymetis"
    raise RequestError(f"{cannot_import('METIS', library)}, or use --method stream")


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None


def assign_metis(
    adjacency: Adjacency, weights: Ids, servers: int, seed: int, backend: Backend, scratch: Path
) -> NDArray[np.int32]:
    """Return [nodes] int32: the server of each node, with few cut edges, and equal shares of the
    weights [nodes, constraints] int64.

    DGL fixes the seed of its METIS. ``scratch`` is a folder with room for 8 bytes an end and, a
    node, for 16 and 8 a constraint.
    """
    if servers == 1:
        return np.zeros(adjacency.nodes, np.int32)
    with scratch_folder(".metis.unfinished-", scratch) as folder:
        for name, array in (*adjacency._asdict().items(), ("weights", weights)):
            save_array(folder / f"{name}.npy", array)
        homes: NDArray[np.int32] = create_array(folder / "homes.npy", np.int32, (adjacency.nodes,))
        words = map(str, (folder, backend, servers, seed, os.getpid()))
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "hopper.partition.metis", *words],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if ended.returncode == 0:
            return np.array(homes)
    code, output = ended.returncode, ended.stdout[-2000:].decode(errors="replace").strip()
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    raise RequestError(
        f"METIS ({backend}) could not divide {adjacency.nodes} nodes over {servers} servers: its "
        f"process {how}; if memory ran out, --method stream needs little, and --backend chooses "
        f"another METIS; it said:\n{output}"
    )


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    tunables = environment.get("GLIBC_TUNABLES")
    environment["GLIBC_TUNABLES"] = f"{tunables}:{_ZEROED}" if tunables else _ZEROED
    # The child must import this package, whether it is installed or not.
    paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _divide_dgl(adjacency: Adjacency, weights: Ids, servers: int) -> Ids | None:
    """Divide by DGL's METIS; None if it failed. DGL's ``metis_partition_assignment`` balances only
    classes of nodes and degrees, so this calls the functions that it calls."""
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


def _divide_pymetis(adjacency: Adjacency, weights: Ids, servers: int, seed: int) -> Ids:
    """Divide by pymetis, which reads a single weight a node."""
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
    folder, backend, servers, seed, parent = sys.argv[1:]
    end_with_parent(int(parent), signal.SIGKILL)

    def load(name: str, mode: Literal["c", "r+"] = "c") -> NDArray[Any]:
        # By default private writable maps: torch accepts no read-only arrays.
        return np.asarray(np.load(f"{folder}/{name}.npy", mmap_mode=mode, allow_pickle=False))

    graph = Adjacency(load("indptr"), load("indices")), load("weights"), int(servers)
    homes = _divide_dgl(*graph) if backend == "dgl" else _divide_pymetis(*graph, int(seed))
    if homes is None:
        sys.exit("METIS found no division")
    load("homes", "r+")[:] = homes


if __name__ == "__main__":
    main()
