"""The files of a run's checkpoints, their copies, and whether a run goes on from one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import torch

from cache_server.events import events
from hopper.cluster.cluster import Cluster
from hopper.config import Config, change_config
from hopper.errors import ConfigError, RequestError
from hopper.files.whole_files import upload
from hopper.train.tensor_file import check_file

FOLDER: Final = "checkpoints"
_NAME: Final = re.compile(r"(?:learnable-rank-(\d+)-)?step-(\d+)\.safetensors")


class CheckpointFiles:
    """The files of a run's checkpoints, named by step: the number of iterations trained before."""

    def __init__(self, run_dir: Path | str) -> None:
        self.folder = Path(run_dir) / FOLDER

    def model(self, step: int) -> Path:
        """Return the file of all models and their progress, which rank 0 writes."""
        return self.folder / f"step-{step}.safetensors"

    def learnable(self, rank: int, step: int) -> Path:
        """Return the file of the learnable rows that a rank owns."""
        return self.folder / f"learnable-rank-{rank}-step-{step}.safetensors"

    def all_learnable(self) -> Iterator[tuple[Path, int, int]]:
        """Yield every file of learnable rows, with its rank and step."""
        for file in self.folder.glob("learnable-rank-*.safetensors"):
            if match := _NAME.fullmatch(file.name):
                yield file, int(match[1]), int(match[2])

    @property
    def steps(self) -> list[int]:
        """The steps of all files of models, newest first."""
        matches = (_NAME.fullmatch(file.name) for file in self.folder.glob("step-*.safetensors"))
        return sorted((int(match[2]) for match in matches if match), reverse=True)

    @property
    def newest(self) -> Path | None:
        """The newest file of models, if there is one."""
        return next(map(self.model, self.steps), None)

    def have_whole_model(self, say: Callable[[str], None]) -> bool:
        """Return whether any file of models passes its checksum; say so if there are files but none
        passes."""
        reasons = []
        for step in self.steps:
            try:
                check_file(self.model(step))
            except RequestError as error:
                reasons.append(str(error))
            else:
                return True
        if reasons:
            say(f"no checkpoint is whole, so training begins anew: {reasons[0]}")
        return False

    def forget_models_after(self, step: int) -> None:
        """Remove files of models of later steps, which would be taken for the newest ones."""
        for later_step in self.steps:
            if later_step > step:
                self.model(later_step).unlink(missing_ok=True)

    def forget_models(self, keep: int = 0) -> list[str]:
        """Remove all files of models except the ``keep`` newest; return their names."""
        old = [self.model(step) for step in self.steps[keep:]]
        for file in old:
            file.unlink(missing_ok=True)
        return [file.name for file in old]


class CheckpointCopy:
    """Copies files to a folder, or a URL such as ``s3://bucket/folder``; "" = nowhere. A copy that
    fails causes a warning and does not end the run."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._system: Any = None
        if address:
            # Runs that copy nothing do not need fsspec.
            import fsspec

            try:
                self._system, self._folder = fsspec.core.url_to_fs(address)
            except (ValueError, ImportError, OSError) as error:
                raise ConfigError(
                    f"train.checkpoint_copy: {address}: expected a folder or an address that "
                    f"fsspec can write to: {error}"
                ) from error

    def put(self, file: Path) -> None:
        """Copy a file. It replaces an older copy only once complete."""
        if self._system is None:
            return
        target = f"{self._folder}/{file.name}"
        try:
            self._system.makedirs(self._folder, exist_ok=True)
            upload(file, self._system, target)
        except Exception as error:  # A plug-in file system may raise anything.
            warn(f"train.checkpoint_copy: {self._address}: {file.name} was not copied: {error}")

    def remove(self, names: Iterable[str]) -> None:
        """Remove copies that are no longer needed."""
        for name in names if self._system is not None else ():
            try:
                self._system.rm_file(f"{self._folder}/{name}")
            except FileNotFoundError:
                continue
            except Exception as error:  # A plug-in file system may raise anything.
                warn(f"train.checkpoint_copy: {self._address}: {name} was not removed: {error}")


def warn(line: str) -> None:
    """Print a warning."""
    events.warn("warning", line)


def will_resume(config: Config, say: Callable[[str], None] = warn) -> bool:
    """Return whether a run continues from a checkpoint. With ``train.resume = "auto"`` it does if
    its folder has one that passes its checksum."""
    train = config.train
    if train.resume == "auto":
        return bool(train.run_dir) and CheckpointFiles(train.run_dir).have_whole_model(say)
    return train.resume


def settle_resume(config: Config, cluster: Cluster) -> Config:
    """Replace "auto" by what rank 0, the writer of checkpoints, finds; every rank must call it."""
    if config.train.resume != "auto":
        return config
    mine = torch.tensor([int(will_resume(config, warn if cluster.rank == 0 else lambda _: None))])
    by_rank = cluster.all_gather(mine, "control", "agreeing on where to go on")
    return change_config(config, train={"resume": bool(by_rank[0])})
