"""Keeps waits within their deadlines while ranks do long work of their own."""

from __future__ import annotations

import torch

from hopper.cluster import Cluster


class Pace:
    """Exchanges signs of life between ranks that work piece by piece.

    A rank's work between two exchanges may take longer than the deadline of a wait. So a working
    rank sends a message after each piece, and a rank that has finished answers these messages.

    Parameters
    ----------
    operation: name of the work, for errors.
    """

    def __init__(self, cluster: Cluster, operation: str) -> None:
        self._cluster = cluster
        self._operation = operation

    def go_on(self) -> None:
        """Say that a piece is done. More pieces may follow, and then :meth:`await_others`."""
        self._meet(working=True)

    def await_others(self) -> None:
        """Wait until every rank has called this."""
        while self._meet(working=False):
            pass

    def _meet(self, *, working: bool) -> bool:
        """Exchange a message, and return whether any rank is still working."""
        if self._cluster.world == 1:
            return False
        count = torch.tensor([int(working)])
        self._cluster.all_reduce(count, "control", self._operation)
        return bool(count)
