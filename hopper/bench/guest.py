"""Another system that is trained in the rounds of an A/B, over the same emulated hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from hopper.bench.emulate.hosts import EmulatedCluster


class Guest(Protocol):
    """One system beside Hopper's contenders. Its times stand beside theirs; what it computes is its
    own and is not compared."""

    @property
    def label(self) -> str:
        """The name of its runs; no contender has the same."""

    @property
    def folder(self) -> str:
        """A name for its files."""

    def train(self, cluster: EmulatedCluster, round_index: int, out: Path) -> dict[str, Any]:
        """Train once, and write into a folder that does not exist yet.

        Returned are ``epochs``, each with ``seconds``, ``iterations``, ``loss`` and ``nic_bytes``
        (by host, what its interface sent), and ``accuracy`` (``test``: a share, or None). A
        ClusterError quotes the last words of a system that failed.
        """
