"""Checkpoints of learnable rows: usually of the rows that changed, now and then of all rows.

Each file names its chain: the steps of the files that it builds on, the first of which has all
rows. Once the files of a chain have as many changed rows as the tables have rows, the next file has
all rows again. Restoring thus reads at most twice the rows. A run without learnable rows has no
such files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from hopper.cluster import Cluster
from hopper.errors import RequestError
from hopper.hetero.learnable import LearnableRows, TableShare
from hopper.hetero.row_records import PickedRows
from hopper.train.checkpoint import load_training, read_progress, save_training
from hopper.train.checkpoint_copy import NO_COPY, CheckpointCopy
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.dealt_rows import IDS_OF, chain_of_files, deal_rows
from hopper.train.results import learned_rows_file
from hopper.train.tensor_file import PLACES, check_file, save_tensors

_MOST_COPIED: Final = 1 << 28
"""The most bytes of rows that are copied, so that writing can overlap with training."""


def save_learned_rows(run_dir: Path, cluster: Cluster, learnable: LearnableRows) -> None:
    """Write one rank's rows at the end of a run, with their original ids."""
    results: dict[str, Tensor] = {}
    for table in learnable:
        results |= table.result()
    if results:
        save_tensors(learned_rows_file(run_dir, cluster.rank), results)


class LearnableCheckpoints:
    """Writes, restores and removes one rank's files of learnable rows.

    Parameters
    ----------
    keep: how many checkpoints to keep, besides one that is being written.
    copy: copies every file to another place.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        cluster: Cluster,
        learnable: LearnableRows,
        identity: dict[str, Any],
        keep: int,
        copy: CheckpointCopy = NO_COPY,
    ) -> None:
        self._files = files
        self._cluster = cluster
        self._learnable = learnable
        self._identity = identity
        self._copy = copy
        self._chain: list[int] = []
        """The chain of the newest checkpoint."""
        self._kept_chains: deque[list[int]] = deque(maxlen=keep + 1)
        """The chains of the newest checkpoints, with the one being written: their files stay."""
        self._changed = 0
        """How many changed rows the files of the newest chain have."""

    def collect(self, step: int, with_kept: bool) -> Callable[[], None]:
        """Copy the rows to save; every rank must call it, after the previous write has ended.

        Parameters
        ----------
        with_kept: whether to save the rows of the best model too.

        Returns
        -------
        A function that writes the copy. If a copy would be too large, the rows are written at once
        and the function does nothing.
        """
        if not self._learnable:
            return _do_nothing
        # Older files may be removed only after every rank has written the newest checkpoint.
        self._cluster.arrive("writing learnable rows")
        chain = self._chain
        self._changed += sum(table.count_changed() for table in self._learnable)
        count = sum(table.count() for table in self._learnable)
        is_whole = step in chain or not chain or self._changed >= count
        content: dict[str, Tensor | PickedRows] = {}
        for table in self._learnable:
            content |= _full_state(table, with_kept) if is_whole else table.changes(with_kept)
        chain = [step] if is_whole else [*chain, step]
        if is_whole:
            self._changed = 0
        progress = {"chain": chain, "changed": self._changed}
        file = self._files.learnable(self._cluster.rank, step)
        size = sum(rows.shape.numel() * rows.dtype.itemsize for rows in content.values())
        if size <= _MOST_COPIED:
            content = _copy(content)

        def write() -> None:
            save_training(file, self._identity, content, progress)
            self._copy.put(file)

        if size > _MOST_COPIED:
            write()
            write = _do_nothing
        for table in self._learnable:
            table.mark_saved()
        self._keep(chain)
        steps = {step for kept_chain in self._kept_chains for step in kept_chain}
        self._forget(lambda step: step not in steps)
        return write

    def check(self, step: int) -> None:
        """Check that the files of a step's chain are as they were written.

        Raises
        ------
        RequestError: a file is missing or altered.
        """
        if self._learnable:
            for file in chain_of_files(self._files, self._cluster.rank, step):
                check_file(file)

    def check_of(self, step: int, ranks: int) -> None:
        """Check this rank's share of the files that ``ranks`` ranks have written.

        All ranks together check all files.

        Raises
        ------
        RequestError: a file is missing or altered.
        """
        if self._learnable:
            for rank in range(self._cluster.rank, ranks, self._cluster.world):
                for file in chain_of_files(self._files, rank, step):
                    check_file(file)

    def load(self, step: int, with_kept: bool) -> None:
        """Restore the rows of a step, and remove newer files.

        Raises
        ------
        RequestError: a file is missing, broken or of another run.
        """
        if not self._learnable:
            return
        path, state = self._files.learnable(self._cluster.rank, step), dict[str, Tensor]()
        for table in self._learnable:
            state |= _full_state(table, with_kept)
        progress = read_progress(path, self._identity)
        for number, chain_step in enumerate(progress["chain"]):
            file = self._files.learnable(self._cluster.rank, chain_step)
            load_training(file, self._identity, state, partly=number > 0)
        for table in self._learnable:
            table.finish_restore()
        self._kept_chains.clear()
        for older in reversed(self._files.steps):
            if older < step:
                with suppress(RequestError):
                    self._kept_chains.append(self._chain_of(older))
        self._keep(progress["chain"])
        self._changed = progress["changed"]
        self._forget(lambda newer: newer > step)

    def load_of(self, step: int, with_kept: bool, ranks: int) -> None:
        """Restore this rank's rows of a step that ``ranks`` other ranks have written."""
        if self._learnable:
            deal_rows(self._files, ranks, step, self._learnable, with_kept)
            # All files that are there stay until newer checkpoints have replaced them.
            self._kept_chains.append([step for _, step in self._list_files()])

    def forget_all(self) -> None:
        """Remove the files that an unfinished run has left."""
        self._forget(lambda _: True)

    def _chain_of(self, step: int) -> list[int]:
        file = self._files.learnable(self._cluster.rank, step)
        chain: list[int] = read_progress(file, self._identity)["chain"]
        return chain

    def _keep(self, chain: list[int]) -> None:
        self._chain = chain
        self._kept_chains.append(chain)

    def _forget(self, is_old: Callable[[int], bool]) -> None:
        """Remove this rank's files of old steps, and their copies."""
        for file, step in self._list_files():
            if is_old(step):
                file.unlink()
                self._copy.remove([file.name])

    def _list_files(self) -> list[tuple[Path, int]]:
        """List this rank's files and their steps. Files of former ranks are divided among all
        ranks."""
        files = []
        for file in self._files.folder.glob("learnable-rank-*-step-*.safetensors"):
            rank, step = (int(word) for word in file.stem.split("-")[2::2])
            if rank % self._cluster.world == self._cluster.rank:
                files.append((file, step))
        return files


def _full_state(table: TableShare, with_kept: bool) -> dict[str, Tensor]:
    """Return a table's state of all rows, with their original ids."""
    state = table.state(with_kept)
    return state | ({f"{IDS_OF}{table.name}": table.originals.clone()} if state else {})


def _do_nothing() -> None:
    """Write nothing."""


def _copy(content: Mapping[str, Tensor | PickedRows]) -> dict[str, Tensor | PickedRows]:
    copied: dict[str, Tensor | PickedRows] = {}
    for name, value in content.items():
        if isinstance(value, PickedRows):
            copied[name] = value.table.index_select(0, value.places)
            copied[f"{name}{PLACES}"] = value.places.clone()
        else:
            copied[name] = value.detach().clone()
    return copied
