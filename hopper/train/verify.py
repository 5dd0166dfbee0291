"""Checking files against their checksums, as ``data.verify`` asks for.

Structure is checked before a run starts, because kernels read it without bounds checks. Features
may be larger than memory. By default they are checked during training, and a run ends well only
after that check.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.errors import GraphError, RequestError
from hopper.partition import PartitionedGraph
from hopper.partition.check_partition import check_partition
from hopper.partition.checksums import check_rows, check_structure, read_division
from hopper.train.rank_failures import tell_failure

_BYTES_A_SECOND: Final = 500e6
"""Rate at which features are checked during training, low enough to leave memory bandwidth."""
_LOOK_SECONDS: Final = 1.0


def verify_data(config: Config, graph: PartitionedGraph, servers: Sequence[int]) -> None:
    """Run the checks of ``data.verify`` that come before training.

    Parameters
    ----------
    servers: the servers whose folders this machine needs.

    Raises
    ------
    GraphError: a file is altered, missing, or has ids that do not exist; names it.
    """
    if config.data.verify == "off":
        return
    check_structure(graph.path, servers)
    check_partition(graph, servers)
    if config.data.verify == "full":
        check_rows(graph.path, servers)


def verify_as_rank(config: Config, graph: PartitionedGraph) -> None:
    """Check this machine's files in the first of its ranks. Its other ranks go on at once.

    Raises
    ------
    GraphError: as :func:`verify_data` does.
    """
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        ranks_here = range(rank, rank + ranks)
        servers = sorted({rank_here // config.cluster.ranks_per_server for rank_here in ranks_here})
        verify_data(config, graph, [server for server in servers if server < graph.book.servers])


def agree_on_division(graph: PartitionedGraph, cluster: Cluster) -> None:
    """Check that all ranks read the same division of the graph; every rank must call it.

    Raises
    ------
    RequestError: some ranks read another division; names them.
    """
    division = read_division(graph.path)
    # Eight bytes of the fingerprint are enough to tell two divisions apart.
    own_division = int.from_bytes(bytes.fromhex(division or "00" * 16)[:8], "little", signed=True)
    everyone = cluster.all_gather(
        torch.tensor([own_division], dtype=torch.int64), "control", "agreeing on the division"
    )
    others = np.flatnonzero((everyone[:, 0] != everyone[0, 0]).numpy()).tolist()
    if others:
        raise RequestError(
            f"{graph.path}: expected one division of the graph on all machines; rank"
            f"{'s' if len(others) > 1 else ''} {', '.join(map(str, others))} and rank 0 have "
            f"different ones (here: {division or 'without a fingerprint'})"
        )


class RowCheck:
    """Checks a server's features in a thread during training, and ends the process on an error."""

    def __init__(self, path: Path, server: int) -> None:
        self._path, self._server = path, server
        self._stopped, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="row-check", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for at most some seconds; return whether everything has been checked."""
        return self._done.wait(seconds)

    def stop(self) -> None:
        """End the check early."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            check_rows(self._path, [self._server], _BYTES_A_SECOND, self._stopped.is_set)
        except GraphError as error:
            tell_failure(error)
            # The main thread may be waiting for other ranks, which end on missing this one.
            os._exit(1)
        self._done.set()


def start_row_check(config: Config, graph: PartitionedGraph, cluster: Cluster) -> RowCheck | None:
    """Begin to check a server's features, in its first rank; None on its other ranks."""
    if config.data.verify != "quick" or cluster.rank % cluster.ranks_per_server:
        return None
    return RowCheck(graph.path, cluster.server)


def await_row_checks(check: RowCheck | None, cluster: Cluster, say: Callable[[str], None]) -> None:
    """Wait until the features of all servers have been checked; every rank must call it."""
    has_said = False
    while True:
        is_done = check is None or check.wait(_LOOK_SECONDS if has_said else 0.0)
        own_state = torch.tensor([int(is_done)])
        if cluster.all_gather(
            own_state, "control", "comparing features with their checksums"
        ).all():
            return
        if not has_said:
            say("waiting for features to be compared with their checksums (data.verify)")
            has_said = True
