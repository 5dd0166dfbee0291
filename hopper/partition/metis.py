"""METIS through DGL, or through pymetis where DGL is not installed.

Balance is a multi-constraint problem (DistDGLv2, section 4.1.3): for every class of nodes (the
training nodes, and the other nodes by type) both the number of nodes and the sum of their degrees
are balanced. pymetis hands METIS a single weight a node, so there one weighted sum is balanced.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema
from hopper.partition.symmetrise import Adjacency, type_starts

Backend = Literal["dgl", "pymetis"]

# METIS reserves room for 16 constraints, and every class takes two.
MOST_CLASSES: Final = 8
_RESOLUTION: Final = 16
_MOST_RELATIVE_WEIGHT: Final = 100


def choose_backend(wanted: str = "auto") -> Backend:
    """The METIS that will be used: DGL's if it can be imported, pymetis otherwise.

    Raises
    ------
    RequestError: the wanted backend is unknown or not installed, or there is none.
    """
    if wanted not in ("auto", "dgl", "pymetis"):
        raise RequestError(f"METIS backend: expected auto, dgl or pymetis, given {wanted!r}")
    if wanted != "pymetis" and _installed("dgl"):
        return "dgl"
    if wanted != "dgl" and _installed("pymetis"):
        return "pymetis"
    missing = "DGL (pip install 'hopper-gnn[dgl]')" if wanted == "dgl" else "pymetis"
    raise RequestError(
        f"METIS needs {missing}, which is not installed; --method random needs neither"
    )


def balance_classes(schema: GraphSchema, roots: NDArray[np.int64]) -> NDArray[np.int64]:
    """[nodes of all types] int64: the class whose share METIS balances, by stacked id.

    Parameters
    ----------
    roots: [nodes of the target type] int64, training roots per node.

    Notes
    -----
    Class 0 holds the training nodes, the others the remaining nodes of a type. With more types
    than METIS has constraints for, the smallest types share the last class.
    """
    nodes = sum(described.count for described in schema.node_types.values())
    starts = type_starts(schema)
    by_size = sorted(schema.node_types, key=lambda t: -schema.node_types[t].count)
    classes = np.zeros(nodes, np.int64)
    for rank, node_type in enumerate(by_size):
        start = starts[node_type]
        stop = start + schema.node_types[node_type].count
        classes[start:stop] = min(rank + 1, MOST_CLASSES - 1)
    target = starts[schema.target_type()]
    classes[target : target + roots.size][roots > 0] = 0
    return classes


def assign_metis(
    adjacency: Adjacency,
    classes: NDArray[np.int64],
    servers: int,
    seed: int,
    backend: Backend,
) -> NDArray[np.int32]:
    """Divide an undirected graph with few cut edges under the balance of :func:`balance_classes`.

    Parameters
    ----------
    classes: [nodes] int64.
    seed: seeds METIS under pymetis; DGL fixes the seed of its METIS, so it has no effect there.

    Returns
    -------
    [nodes] int32: the server of each node.

    Raises
    ------
    RequestError: METIS failed.
    """
    if servers == 1:
        return np.zeros(adjacency.nodes, np.int32)
    divide = _divide_dgl if backend == "dgl" else _divide_pymetis
    with _chatter_held_back(backend):
        homes = divide(adjacency, classes, servers, seed)
    if homes is None or homes.size != adjacency.nodes:
        raise RequestError(
            f"METIS ({backend}) could not divide {adjacency.nodes} nodes over {servers} servers; "
            "the usual reason is too little memory: try --method random"
        )
    return homes.astype(np.int32)


def _divide_dgl(
    adjacency: Adjacency, classes: NDArray[np.int64], servers: int, seed: int
) -> NDArray[np.int64] | None:
    del seed  # DGL gives no way to set it
    os.environ.setdefault("DGLBACKEND", "pytorch")
    dgl = importlib.import_module("dgl")
    torch = importlib.import_module("torch")
    no_edge_ids = torch.empty(0, dtype=torch.int64)
    parts = (torch.from_numpy(adjacency.indptr), torch.from_numpy(adjacency.indices), no_edge_ids)
    graph = dgl.graph(("csc", parts), num_nodes=adjacency.nodes)
    with warnings.catch_warnings():
        # DGL leaves /proc/self/status to the garbage collector whenever it reads its memory use.
        warnings.simplefilter("ignore", ResourceWarning)
        homes = dgl.metis_partition_assignment(
            graph,
            servers,
            balance_ntypes=torch.from_numpy(classes),
            balance_edges=True,
            objtype="cut",
        )
    return None if homes is None else homes.numpy()


def _divide_pymetis(
    adjacency: Adjacency, classes: NDArray[np.int64], servers: int, seed: int
) -> NDArray[np.int64]:
    pymetis = importlib.import_module("pymetis")
    # Releases before 2025.2 take the two arrays, later ones a pair of them.
    graph: dict[str, Any] = {"xadj": adjacency.indptr, "adjncy": adjacency.indices}
    if hasattr(pymetis, "CSRAdjacency"):
        graph = {"adjacency": pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices)}
    _, homes = pymetis.part_graph(
        servers,
        vweights=combined_weight(adjacency.degrees(), classes),
        recursive=False,
        options=pymetis.Options(seed=seed % 2**31),
        **graph,
    )
    return np.asarray(homes, dtype=np.int64)


def combined_weight(degrees: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """[nodes] int64: nodes, degrees and training nodes (class 0) in one weight, a third each.

    Few training nodes weigh less than their third, lest single nodes become too heavy to balance.
    """
    nodes, training = classes.size, int((classes == 0).sum())
    of_degree = degrees * (nodes / max(1, int(degrees.sum())))
    of_training = np.where(classes == 0, min(nodes / max(1, training), _MOST_RELATIVE_WEIGHT), 0)
    weight: NDArray[np.int64] = np.rint(_RESOLUTION * (1 + of_degree + of_training)).astype(
        np.int64
    )
    return weight


def _installed(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None


@contextlib.contextmanager
def _chatter_held_back(backend: Backend) -> Iterator[None]:
    """Keep what METIS and DGL print, from Python and from C, off the terminal unless they fail."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    with tempfile.TemporaryFile() as log, contextlib.redirect_stdout(io.StringIO()):
        for stream in kept:
            os.dup2(log.fileno(), stream)
        try:
            yield
        except Exception as error:
            log.seek(0)
            said = log.read()[-2000:].decode(errors="replace").strip()
            raise RequestError(f"METIS ({backend}) failed: {error}\n{said}".strip()) from error
        finally:
            # What C has buffered belongs to the log too.
            ctypes.CDLL(None).fflush(None)
            for stream, original in kept.items():
                os.dup2(original, stream)
                os.close(original)
