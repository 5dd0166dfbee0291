"""Checkpoints of learnable rows: of those that changed since the last one, and now and then of all.

A file names the steps of the files that it goes on from, its chain, which begins with one of all
rows. Once the changes along a chain are as many as there are rows, the next file has all of them
again, so that restoring reads no more than twice that and writing is spread over the changes. Where
nothing is learned there are no files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from hopper.cluster import Cluster
from hopper.hetero.learnable import LearnableRows
from hopper.hetero.row_records import PickedRows
from hopper.train.checkpoint import load_training, read_progress, save_training
from hopper.train.results import learned_rows_file
from hopper.train.tensor_file import save_tensors


def save_learned_rows(run_dir: Path, cluster: Cluster, learnable: LearnableRows) -> None:
    """Write one rank's rows, as a run ends with them, and their original ids."""
    results: dict[str, Tensor] = {}
    for table in learnable:
        results |= table.result()
    if results:
        save_tensors(learned_rows_file(run_dir, cluster.rank), results)


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
        with_kept: as of :meth:`TableShare.state`.
        """
        if not self._learnable:
            return
        self._changed += sum(table.count_changed() for table in self._learnable)
        is_again, count = step in self._chain, sum(table.count() for table in self._learnable)
        is_whole = is_again or not self._chain or self._changed >= count
        content: dict[str, Tensor | PickedRows] = {}
        for table in self._learnable:
            content |= table.state(with_kept) if is_whole else table.changes(with_kept)
        chain = [step] if is_whole else [*self._chain, step]
        if is_whole:
            self._changed = 0
        progress = {"chain": chain, "changed": self._changed}
        save_training(self._file(step), self._identity, content, progress)
        for table in self._learnable:
            table.saved()
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
        if not self._learnable:
            return
        path, state = self._file(step), dict[str, Tensor]()
        for table in self._learnable:
            state |= table.state(with_kept)
        progress = read_progress(path, self._identity)
        for each in progress["chain"]:
            load_training(self._file(each), self._identity, state, partly=each != step)
        for table in self._learnable:
            table.restored()
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
