"""Checking files against their checksums, as ``data.verify`` asks for.

Structure is checked before a run starts, because kernels read it without bounds checks. Features
may be larger than memory. By default they are checked during training. What training does not leave
time for is told.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from hopper.cluster.cluster import Cluster
from hopper.config import Config
from hopper.errors import GraphError, RequestError
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import check_partition, check_rows, check_structure, read_division
from hopper.train.rank_process import tell_failure

_BYTES_A_SECOND: Final = 500e6
"""Rate at which features are checked during training, low enough to leave memory bandwidth."""
_LAST_SECONDS: Final = 10.0
"""How long the check may go on, at any rate, once training has ended."""


def verify_data(config: Config, graph: PartitionedGraph, servers: Sequence[int]) -> None:
    """Run the checks of ``data.verify`` that come before training, of the folders of servers that
    this machine needs."""
    if config.data.verify == "off":
        return
    check_structure(graph.path, servers)
    check_partition(graph, servers)
    if config.data.verify == "full":
        check_rows(graph.path, servers)


def verify_as_rank(config: Config, graph: PartitionedGraph) -> None:
    """Do what :func:`verify_data` does in the first rank of a machine; the others go on at once."""
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        ranks_here = range(rank, rank + ranks)
        servers = sorted({rank_here // config.cluster.ranks_per_server for rank_here in ranks_here})
        verify_data(config, graph, [server for server in servers if server < graph.book.servers])


def agree_on_division(graph: PartitionedGraph, cluster: Cluster) -> None:
    """Check that all ranks read the same division of the graph; every rank must call it."""
    division = read_division(graph.path)
    # Eight bytes of the fingerprint are enough to tell two divisions apart.
    own_division = int.from_bytes(bytes.fromhex(division or "00" * 16)[:8], "little", signed=True)
    mine = torch.tensor([own_division], dtype=torch.int64)
    everyone = cluster.all_gather(mine, "control", "agreeing on the division")
    others = np.flatnonzero((everyone[:, 0] != everyone[0, 0]).numpy()).tolist()
    if others:
        raise RequestError(
            f"{graph.path}: expected one division of the graph on all machines; rank"
            f"{'s' if len(others) > 1 else ''} {', '.join(map(str, others))} and rank 0 have "
            f"different ones (here: {division or 'without a fingerprint'})"
        )


class RowCheck:
    """Checks features during training if ``data.verify`` is "quick", in a thread of each server's
    first rank, and ends the process on an error. As a context manager it ends the check."""

    def __init__(self, verify: str, path: Path, cluster: Cluster) -> None:
        self._path, self._cluster = path, cluster
        self._is_complete = verify != "quick" or cluster.rank % cluster.ranks_per_server > 0
        self._begun = time.monotonic()
        self._in_haste, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="row-check", daemon=True)
        if not self._is_complete:
            self._thread.start()

    def __enter__(self) -> RowCheck:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._in_haste.set()
        if self._thread.ident is not None:
            self._thread.join()

    def finish(self, say: Callable[[str], None]) -> None:
        """End the checks of all servers' features, for which nobody should wait for hours, and tell
        which did not finish; collective."""
        self._in_haste.set()
        if self._thread.ident is not None:
            self._thread.join(min(_LAST_SECONDS, self._cluster.timeout / 2))
        self.__exit__()
        mine = torch.tensor([int(self._is_complete)])
        done = self._cluster.all_gather(mine, "control", "comparing features with their checksums")
        late_ranks = np.flatnonzero(~done[:, 0].bool().numpy())
        late = sorted({rank // self._cluster.ranks_per_server for rank in late_ranks})
        if late:
            say(
                f"not all features of server{'s' if len(late) > 1 else ''} "
                f"{', '.join(map(str, late))} were compared with their checksums, since the run "
                'ended first; data.verify = "full" compares them before a run'
            )

    def _run(self) -> None:
        try:
            self._is_complete = check_rows(self._path, [self._cluster.server], self._go_on)
        except GraphError as error:
            tell_failure(error)
            # The main thread may be waiting for other ranks, which end on missing this one.
            os._exit(1)

    def _go_on(self, nbytes: int) -> bool:
        """Wait as long as the rate demands; return whether the check is still wanted."""
        ahead = nbytes / _BYTES_A_SECOND - (time.monotonic() - self._begun)
        self._in_haste.wait(max(0.0, ahead))
        return not self._stopped.is_set()
