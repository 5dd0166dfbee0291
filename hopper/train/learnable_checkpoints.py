"""Checkpoints of learnable rows: of those that changed since the last one, and now and then of all.

A file names the steps of the files that it goes on from, its chain, which begins with one of all
rows. Once the changes along a chain are as many as there are rows, the next file has all of them
again, so that restoring reads no more than twice that and writing is spread over the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hopper.cluster import Cluster
from hopper.hetero.learnable import LearnableRows
from hopper.hetero.row_records import PickedRows
from hopper.train.checkpoint import load_training, read_progress, save_training


class LearnableCheckpoints:
    """One rank's files of learnable rows in a run's folder."""

    def __init__(
        self, run_dir: Path, cluster: Cluster, learnable: LearnableRows, identity: dict[str, Any]
    ) -> None:
        self._run_dir = run_dir
        self._cluster = cluster
        self._learnable = learnable
        self._identity = identity
        self._chain: list[int] = []
        self._before: list[int] = []
        """the chain of the checkpoint before"""
        self._changed = 0
        """rows, along the chain"""

    def save(self, step: int, with_kept: bool) -> None:
        """Write what changed; every rank has to call it, before the checkpoint that names the step
        is written.

        Parameters
        ----------
        with_kept: as of :meth:`LearnableRows.state`.
        """
        learnable = self._learnable
        self._changed += learnable.count_changed()
        is_again = step in self._chain
        if is_again or not self._chain or self._changed >= learnable.count():
            chain, self._changed = [step], 0
            content: Mapping[str, Tensor | PickedRows] = learnable.state(with_kept)
        else:
            chain, content = [*self._chain, step], learnable.changes(with_kept)
        progress = {"chain": chain, "changed": self._changed}
        save_training(self._file(step), self._identity, content, progress)
        learnable.saved()
        self._cluster.arrive("writing learnable rows")
        # Those of the checkpoint before are needed until the next one is whole.
        self._before, self._chain = self._chain, chain
        needed = {*self._before, *self._chain}
        self._forget(lambda each: each not in needed)

    def load(self, step: int, with_kept: bool) -> None:
        """Restore the rows of a step; what is newer goes.

        Raises
        ------
        RequestError: a file is missing, broken or of another run.
        """
        path, state = self._file(step), self._learnable.state(with_kept)
        progress = read_progress(path, self._identity)
        for each in progress["chain"]:
            load_training(self._file(each), self._identity, state, partly=each != step)
        self._learnable.restored()
        self._chain, self._changed = progress["chain"], progress["changed"]
        self._forget(lambda each: each > step)

    def forget_all(self) -> None:
        """Remove what an unfinished run has left."""
        self._forget(lambda _: True)

    def _file(self, step: int | str) -> Path:
        name = f"checkpoint-learnable-rank-{self._cluster.rank}-step-{step}.safetensors"
        return self._run_dir / name

    def _forget(self, is_old: Callable[[int], bool]) -> None:
        for file in self._run_dir.glob(self._file("*").name):
            if is_old(int(file.stem.rpartition("-")[2])):
                file.unlink()
