"""Run METIS in a process of its own.

METIS ends its process when it runs out of memory, and prints to the terminal from C. DGL's METIS
also reads memory that it never wrote, so its result for one graph varies. In another process, the
end becomes an error with a text, and the prints become part of it. The allocator of that process
returns zeroed memory, so the result does not vary.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError, cannot_import
from hopper.graph.array_file import create_array, save_array
from hopper.partition.symmetrise import Adjacency
from hopper.scratch import scratch_folder

Backend = Literal["dgl", "pymetis"]

# glibc fills new memory with the complement of "perturb", except from its thread cache.
_ZEROED: Final = "glibc.malloc.perturb=255:glibc.malloc.tcache_count=0"


def choose_backend(name: str = "auto") -> Backend:
    """Choose the METIS to use: DGL's if it is installed, otherwise pymetis.

    Raises
    ------
    RequestError: the wanted backend is unknown or not installed, or there is none.
    """
    if name not in ("auto", "dgl", "pymetis"):
        raise RequestError(f"METIS backend: expected auto, dgl or pymetis, given {name!r}")
    if name != "pymetis" and _is_installed("dgl"):
        return "dgl"
    if name != "dgl" and _is_installed("pymetis"):
        return "pymetis"
    library = "dgl" if name == "dgl" else "pymetis"
    raise RequestError(f"{cannot_import('METIS', library)}, or use --method stream")


def assign_metis(
    adjacency: Adjacency,
    weights: NDArray[np.int64],
    servers: int,
    seed: int,
    backend: Backend,
    scratch: Path,
) -> NDArray[np.int32]:
    """Divide an undirected graph with few cut edges, every constraint balanced.

    Parameters
    ----------
    weights: [nodes, constraints] int64, see :meth:`hopper.partition.balance.Balance.weights`.
    seed: seeds METIS under pymetis; DGL fixes the seed of its METIS, so it has no effect there.
    scratch: a folder on a disk with room for 8 bytes per end and, per node, 16 and 8 a
        constraint, for a while.

    Returns
    -------
    [nodes] int32: the server of each node.

    Raises
    ------
    RequestError: METIS failed; its last words are in the text.
    OSError: the disk has too little space; names a file.
    """
    if servers == 1:
        return np.zeros(adjacency.nodes, np.int32)
    with scratch_folder(".metis.unfinished-", scratch) as folder:
        save_array(folder / "indptr.npy", adjacency.indptr)
        save_array(folder / "indices.npy", adjacency.indices)
        save_array(folder / "weights.npy", weights)
        homes: NDArray[np.int32] = create_array(folder / "homes.npy", np.int32, (adjacency.nodes,))
        command = [sys.executable, "-P", "-m", "hopper.partition.metis", str(folder), backend]
        ended = subprocess.run(
            [*command, str(servers), str(seed), "--die-with-parent", str(os.getpid())],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if ended.returncode != 0:
            raise RequestError(_explain_failure(adjacency, servers, backend, ended))
        return np.array(homes)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    tunables = environment.get("GLIBC_TUNABLES")
    environment["GLIBC_TUNABLES"] = f"{tunables}:{_ZEROED}" if tunables else _ZEROED
    # The child must import this package, whether it is installed or not.
    paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _explain_failure(
    adjacency: Adjacency,
    servers: int,
    backend: Backend,
    ended: subprocess.CompletedProcess[bytes],
) -> str:
    output = ended.stdout[-2000:].decode(errors="replace").strip()
    code = ended.returncode
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return (
        f"METIS ({backend}) could not divide {adjacency.nodes} nodes over {servers} servers: its "
        f"process {how}; if memory ran out, --method stream needs little, and --backend chooses "
        f"another METIS; it said:\n{output}"
    )


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None
