"""Checkpoints of learnable rows: of those that changed since the last one, and now and then of all.

A file names the steps of the files that it goes on from, its chain, which begins with one of all
rows. Once the changes along a chain are as many as there are rows, the next file has all of them
again, so that restoring reads no more than twice that and writing is spread over the changes. Where
nothing is learned there are no files.
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
"""bytes of rows that are copied, to be written while training changes them"""


def save_learned_rows(run_dir: Path, cluster: Cluster, learnable: LearnableRows) -> None:
    """Write one rank's rows, as a run ends with them, and their original ids."""
    results: dict[str, Tensor] = {}
    for table in learnable:
        results |= table.result()
    if results:
        save_tensors(learned_rows_file(run_dir, cluster.rank), results)


class LearnableCheckpoints:
    """One rank's files of learnable rows.

    Parameters
    ----------
    keep: how many checkpoints stay, besides one that is being written.
    copy: where files are copied to.
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
        """of the newest checkpoint"""
        self._kept: deque[list[int]] = deque(maxlen=keep + 1)
        """steps whose files stay: the chains of the newest checkpoints, one under way among them"""
        self._changed = 0
        """rows, along the newest chain"""

    def collect(self, step: int, with_kept: bool) -> Callable[[], None]:
        """Take what changed; every rank has to call it, once it has written what it took before.

        Parameters
        ----------
        with_kept: as of :meth:`TableShare.state`.

        Returns
        -------
        What writes it. Where a copy would be too large, it is written already.
        """
        if not self._learnable:
            return _nothing
        # Files of older checkpoints go only once every rank has those of the newest.
        self._cluster.arrive("writing learnable rows")
        chain = self._chain
        self._changed += sum(table.count_changed() for table in self._learnable)
        count = sum(table.count() for table in self._learnable)
        is_whole = step in chain or not chain or self._changed >= count
        content: dict[str, Tensor | PickedRows] = {}
        for table in self._learnable:
            content |= _whole(table, with_kept) if is_whole else table.changes(with_kept)
        chain = [step] if is_whole else [*chain, step]
        if is_whole:
            self._changed = 0
        progress = {"chain": chain, "changed": self._changed}
        file = self._files.learnable(self._cluster.rank, step)
        size = sum(each.shape.numel() * each.dtype.itemsize for each in content.values())
        if size <= _MOST_COPIED:
            content = _copied(content)

        def write() -> None:
            save_training(file, self._identity, content, progress)
            self._copy.put(file)

        if size > _MOST_COPIED:
            write()
            write = _nothing
        for table in self._learnable:
            table.mark_saved()
        self._keep(chain)
        needed = {each for kept in self._kept for each in kept}
        self._forget(lambda each: each not in needed)
        return write

    def check(self, step: int) -> None:
        """See whether the files that a step goes on from are as they were written.

        Raises
        ------
        RequestError: one is missing or altered.
        """
        if self._learnable:
            for file in chain_of_files(self._files, self._cluster.rank, step):
                check_file(file)

    def check_of(self, step: int, ranks: int) -> None:
        """See whether a share of the files of so many ranks is as it was written, so that all ranks
        together look at all of them; raises as :meth:`check`."""
        if self._learnable:
            for rank in range(self._cluster.rank, ranks, self._cluster.world):
                for file in chain_of_files(self._files, rank, step):
                    check_file(file)

    def load(self, step: int, with_kept: bool) -> None:
        """Restore the rows of a step; what is newer goes.

        Raises
        ------
        RequestError: a file is missing, broken or of another run.
        """
        if not self._learnable:
            return
        path, state = self._files.learnable(self._cluster.rank, step), dict[str, Tensor]()
        for table in self._learnable:
            state |= _whole(table, with_kept)
        progress = read_progress(path, self._identity)
        for number, each in enumerate(progress["chain"]):
            file = self._files.learnable(self._cluster.rank, each)
            load_training(file, self._identity, state, partly=number > 0)
        for table in self._learnable:
            table.finish_restore()
        self._kept.clear()
        for older in reversed(self._files.steps):
            if older < step:
                with suppress(RequestError):
                    self._kept.append(self._chain_of(older))
        self._keep(progress["chain"])
        self._changed = progress["changed"]
        self._forget(lambda each: each > step)

    def load_of(self, step: int, with_kept: bool, ranks: int) -> None:
        """Restore rows of a step that so many ranks have written, each whatever were its own."""
        if self._learnable:
            deal_rows(self._files, ranks, step, self._learnable, with_kept)
            # All of them, until checkpoints of these ranks have taken their place.
            self._kept.append([step for _, step in self._found()])

    def forget_all(self) -> None:
        """Remove what an unfinished run has left."""
        self._forget(lambda _: True)

    def _chain_of(self, step: int) -> list[int]:
        file = self._files.learnable(self._cluster.rank, step)
        chain: list[int] = read_progress(file, self._identity)["chain"]
        return chain

    def _keep(self, chain: list[int]) -> None:
        self._chain = chain
        self._kept.append(chain)

    def _forget(self, is_old: Callable[[int], bool]) -> None:
        for file, step in self._found():
            if is_old(step):
                file.unlink()
                self._copy.remove([file.name])

    def _found(self) -> list[tuple[Path, int]]:
        """This rank's files and their steps; those of ranks that are no more are dealt to all."""
        found = []
        for file in self._files.folder.glob("learnable-rank-*-step-*.safetensors"):
            rank, step = (int(each) for each in file.stem.split("-")[2::2])
            if rank % self._cluster.world == self._cluster.rank:
                found.append((file, step))
        return found


def _whole(table: TableShare, with_kept: bool) -> dict[str, Tensor]:
    """All of a table's state, and whose rows these are."""
    state = table.state(with_kept)
    return state | ({f"{IDS_OF}{table.name}": table.originals.clone()} if state else {})


def _nothing() -> None:
    """There is nothing to write."""


def _copied(content: Mapping[str, Tensor | PickedRows]) -> dict[str, Tensor | PickedRows]:
    copied: dict[str, Tensor | PickedRows] = {}
    for name, value in content.items():
        if isinstance(value, PickedRows):
            copied[name] = value.table.index_select(0, value.places)
            copied[f"{name}{PLACES}"] = value.places.clone()
        else:
            copied[name] = value.detach().clone()
    return copied
