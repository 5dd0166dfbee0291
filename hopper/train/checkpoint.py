"""Checkpoints: all state that a run needs to continue bit for bit.

Draws, shuffling and dropout are functions of counters. The state is therefore only the parameters,
the optimiser, the progress of the run, the scores so far, and learnable rows. Rank 0 writes the
models, and each rank the learnable rows that it owns, with their original ids. So any other ranks
can find theirs among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hopper.engines import TrainStep
from hopper.errors import RequestError
from hopper.hetero.learnable import TableShare
from hopper.ops import is_finite
from hopper.train.checkpoint_files import CheckpointCopy, CheckpointFiles, warn
from hopper.train.run_identity import RANKS, find_differences, find_moves
from hopper.train.tensor_file import (
    fill_tensors,
    open_tensors,
    read_facts,
    read_pieces,
    save_tensors,
)
from hopper.train.trained_model import Progress, TrainedModel

FORMAT: Final = 2
"""The version of files of checkpoints."""
_MOST_COPIED: Final = 1 << 28
"""The most bytes of learnable rows that are copied, so that writing overlaps with training."""
_MOST_LISTED: Final = 64
"""The most checkpoints among which ranks look for one that is whole for all of them."""


def save_checkpoint(
    path: Path, identity: Mapping[str, Any], tensors: Mapping[str, Tensor], progress: Any = None
) -> None:
    """Write a file of a checkpoint; an older one is replaced once it is complete."""
    save_tensors(path, tensors, {"format": FORMAT, "identity": identity, "progress": progress})


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read the identity and the progress of a file of a checkpoint, whose checksum is compared;
    refuse one of another version of Hopper."""
    facts = read_facts(path)
    if facts.get("format") != FORMAT:
        raise RequestError(
            f"{path}: a checkpoint of format {facts.get('format')}, which another version of "
            f"Hopper wrote; expected format {FORMAT}: go on with that version, or begin anew"
        )
    return facts


class RunCheckpoints:
    """Saves and restores a run. Every rank must call every method.

    With several models, the tensors' names begin with the model's name, and the progress is a list.
    A checkpoint is copied in memory, and written while training goes on. ``good`` is the newest one
    whose numbers are all finite.
    """

    def __init__(
        self,
        engine: TrainStep[Any, Any],
        models: Sequence[TrainedModel],
        run_dir: Path,
        identity: dict[str, Any],
    ) -> None:
        self._engine, self._models, self._identity = engine, models, identity
        self._cluster, self._learnable = engine.state.cluster, engine.state.learnable
        self._files = CheckpointFiles(run_dir)
        self.good: Path | None = None
        train = engine.state.config.train
        self._keep, self._copy = train.keep_checkpoints, CheckpointCopy(train.checkpoint_copy)
        self._thread = ThreadPoolExecutor(1, "hopper-checkpoint")
        self._writing: Future[None] | None = None

    def load(self) -> None:
        """Restore all models and their progress from the newest checkpoint that is whole for every
        rank.

        An exact run can continue on other ranks or servers, or under another engine: it stays the
        same except for rounding.
        """
        step = self._find_whole()
        file = self._files.model(step)
        facts = read_checkpoint(file)
        moves = find_moves(file, facts["identity"], self._identity)
        fill_tensors(self._tensors(), file)
        self.good = file
        saved = facts["progress"]
        by_model = [saved] if isinstance(saved, dict) else saved
        for model, progress in zip(self._models, by_model, strict=True):
            model.progress = Progress(**progress)
        files = [self._files.learnable(rank, step) for rank in self._shards(facts["identity"])]
        for table in self._learnable:
            restore_table(table, self._has_best, files)
        self._forget_rows(lambda newer: newer > step)
        if self._cluster.rank == 0:
            if moves:
                warn(f"going on elsewhere, the same but for rounding: {'; '.join(moves)}")
            self._files.forget_models_after(step)
        self._engine.state.log.event("resumed", step=step)

    def save(self) -> None:
        """Copy the models as they are after the last iteration, and begin to write the copy; raise
        the error of writing the previous one."""
        with self._engine.state.log.stage("sync", operation="taking a checkpoint"):
            self.finish()
            step = max(model.progress.step for model in self._models)
            self._engine.models.complete(f"after iteration {step}", moments=True)
            rows, models = self._take_rows(), self._tensors()
            if all(map(is_finite, models.values())):
                self.good = self._files.model(step)
            is_first, rows_file = self._cluster.rank == 0, None
            if self._learnable:
                rows_file = self._files.learnable(self._cluster.rank, step)
            if rows_file and sum(tensor.nbytes for tensor in rows.values()) > _MOST_COPIED:
                # Such rows are not copied, so they are written before training changes them.
                self._put(rows_file, rows)
                rows_file = None
            rows = _copy_to_host(rows if rows_file else {})
            models = _copy_to_host(models if is_first else {})
            by_model = [asdict(model.progress) for model in self._models]
            progress = by_model if self._models[0].state.name else by_model[0]

            def write() -> None:
                if rows_file:
                    self._put(rows_file, rows)
                if is_first:
                    self._put(self._files.model(step), models, progress)
                    # Other ranks may not have written their rows yet, so the one before stays too.
                    keep = max(2, self._keep) if self._learnable else self._keep
                    self._copy.remove(self._files.forget_models(keep))

            self._writing = self._thread.submit(write)

    def finish(self) -> None:
        """Wait until the last checkpoint is written; raises the same errors as :meth:`save`."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def forget(self) -> None:
        """Remove the checkpoints of an unfinished run, which this run replaces."""
        self._forget_rows(lambda _: True)
        if self._cluster.rank == 0:
            self._files.forget_models()

    def _take_rows(self) -> dict[str, Tensor]:
        """Return this rank's learnable rows, and remove files of old ones."""
        if self._learnable:
            # Older files may be removed only after every rank has written the newest checkpoint.
            self._cluster.arrive("writing learnable rows")
            steps = sorted({step for _, step in self._list_rows()}, reverse=True)
            self._forget_rows(lambda older: older in steps[self._keep :])
        rows: dict[str, Tensor] = {}
        for table in self._learnable:
            rows |= rows_to_save(table, self._has_best)
        return rows

    def _put(self, file: Path, tensors: Mapping[str, Tensor], progress: Any = None) -> None:
        save_checkpoint(file, self._identity, tensors, progress)
        self._copy.put(file)

    def _forget_rows(self, is_old: Callable[[int], bool]) -> None:
        """Remove this rank's files of learnable rows of old steps, and their copies."""
        for file, step in self._list_rows():
            if is_old(step):
                file.unlink()
                self._copy.remove([file.name])

    def _list_rows(self) -> list[tuple[Path, int]]:
        """List this rank's files of learnable rows and their steps. Files of former ranks are
        divided among all ranks."""
        rank, world = self._cluster.rank, self._cluster.world
        files = self._files.all_learnable()
        return [(file, step) for file, owner, step in files if owner % world == rank]

    def _find_whole(self) -> int:
        """Return the step of the newest checkpoint that is whole for every rank."""
        cluster, folder, reasons = self._cluster, self._files.folder, list[str]()
        # Rank 0 wrote the files, and other machines may see them later. So its list decides.
        mine = torch.tensor((self._files.steps + [-1] * _MOST_LISTED)[:_MOST_LISTED])
        by_rank = cluster.all_gather(mine, "control", "naming checkpoints")
        if int(by_rank.max()) < 0:
            raise RequestError(f"{folder}: no checkpoint to resume from")
        for step in filter(lambda step: step >= 0, by_rank[0].tolist()):
            reason = self._why_not(step)
            failed = torch.tensor([int(bool(reason))])
            if not cluster.all_gather(failed, "control", "looking at a checkpoint").any():
                return int(step)
            if reason:
                reasons.append(reason)
                warn(f"rank {cluster.rank}: a checkpoint is passed over: {reason}")
        if reasons:
            raise RequestError(f"{folder}: no whole checkpoint: {reasons[-1]}")
        raise RequestError(f"{folder}: no checkpoint that every rank finds")

    def _why_not(self, step: int) -> str:
        """Return why ranks cannot continue from a step, "" if they can. All together check the
        files of all ranks that wrote the checkpoint."""
        try:
            shards = self._shards(read_checkpoint(self._files.model(step))["identity"])
            if len(shards) > 1:
                shards = shards[self._cluster.rank :: self._cluster.world]
            for shard in shards if self._learnable else ():
                read_checkpoint(self._files.learnable(shard, step))
        except RequestError as error:
            return str(error)
        return ""

    def _shards(self, saved: Mapping[str, Any]) -> list[int]:
        """Return the ranks whose files may have rows that this rank owns: itself, or all those that
        wrote the checkpoint of a run that moves."""
        moves = find_differences(saved, self._identity)
        return list(range(saved[RANKS])) if moves else [self._cluster.rank]

    @property
    def _has_best(self) -> bool:
        return self._models[0].progress.best_epoch is not None

    def _tensors(self) -> dict[str, Tensor]:
        """Return all tensors that training depends on, by name. Filling them restores training."""
        tensors: dict[str, Tensor] = {}
        for state in self._engine.models:
            prefix = f"{state.name}." if state.name else ""
            model, moments = state.packed.module.state_dict(), state.optimizer.state()
            tensors |= {f"{prefix}model.{name}": tensor for name, tensor in model.items()}
            tensors |= {f"{prefix}optimizer.{name}": tensor for name, tensor in moments.items()}
            tensors |= {f"{prefix}{n}": tensor for n, tensor in state.packed.scale.state().items()}
        return tensors


def rows_to_save(table: TableShare, with_kept: bool) -> dict[str, Tensor]:
    """Return a table's state of all rows, those of the best model too if asked for, with their
    original ids; nothing if it is frozen."""
    state = table.state(with_kept)
    return state | ({f"ids.{table.name}": table.originals} if state else {})


def restore_table(table: TableShare, with_kept: bool, files: Sequence[Path]) -> None:
    """Fill a table's rows, those that this rank owns, from files of :func:`rows_to_save`."""
    state = table.state(with_kept)
    for file in files if state else ():
        for name, target in state.items():
            if name.startswith("optimizer."):
                # All ranks have the same tensor.
                with open_tensors(file) as tensors:
                    target.copy_(tensors.get_tensor(name))
                continue
            for ids, rows in read_pieces(file, [f"ids.{table.name}", name]):
                places, is_own = table.find(ids.numpy())
                target.index_copy_(0, places.to(target.device), rows[is_own].to(target.device))
    table.finish_restore()


def _copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
