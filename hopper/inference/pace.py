"""Ranks that work for long, each by itself, and are waited for as long as they say that they do."""

from __future__ import annotations

import torch

from hopper.cluster import Cluster


class Pace:
    """Lets ranks hear of each other while they work piece by piece.

    Every wait has a deadline, and what a rank does between two exchanges may take longer. So a rank
    that works says so after each piece, and one that is ready goes on listening.

    Parameters
    ----------
    operation: names the work in errors.
    """

    def __init__(self, cluster: Cluster, operation: str) -> None:
        self._cluster = cluster
        self._operation = operation

    def go_on(self) -> None:
        """A piece is done, and more work may follow; :meth:`await_others` does."""
        self._meet(working=True)

    def await_others(self) -> None:
        """Return once every rank has come here; all of them have to."""
        while self._meet(working=False):
            pass

    def _meet(self, *, working: bool) -> bool:
        """Whether any rank still works."""
        if self._cluster.world == 1:
            return False
        count = torch.tensor([int(working)])
        self._cluster.all_reduce(count, "control", self._operation)
        return bool(count)
