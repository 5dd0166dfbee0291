"""Where a run's checkpoints lie: ``checkpoints/`` in its folder, some of them, the newest ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cache_server.events import events
from hopper.errors import RequestError
from hopper.train.tensor_file import check_file

FOLDER: Final = "checkpoints"
_MODEL: Final = re.compile(r"step-(\d+)\.safetensors")


class CheckpointFiles:
    """Names of the files of a run's checkpoints, by the iterations that had been trained."""

    def __init__(self, run_dir: Path | str) -> None:
        self.folder = Path(run_dir) / FOLDER

    def model(self, step: int) -> Path:
        """What rank 0 writes: all models, and the place in the run."""
        return self.folder / f"step-{step}.safetensors"

    def learnable(self, rank: int, step: int) -> Path:
        """A rank's learnable rows, or those that changed: ``learnable_checkpoints``."""
        return self.folder / f"learnable-rank-{rank}-step-{step}.safetensors"

    @property
    def steps(self) -> list[int]:
        """Of all models that were written, newest first."""
        found = (_MODEL.fullmatch(file.name) for file in self.folder.glob("step-*.safetensors"))
        return sorted((int(each[1]) for each in found if each), reverse=True)

    @property
    def newest(self) -> Path | None:
        """The newest file of models, if there is one."""
        steps = self.steps
        return self.model(steps[0]) if steps else None

    def have_whole_model(self, say: Callable[[str], None]) -> bool:
        """Whether any file of models is as it was written; ``say`` is told if there are some, and
        none is."""
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
        """Remove files of models of later steps, which would pass for the newest ones."""
        for each in self.steps:
            if each > step:
                self.model(each).unlink(missing_ok=True)

    def forget_models(self, kept: int = 0) -> list[str]:
        """Remove all files of models but the newest ones; returns their names."""
        old = [self.model(step) for step in self.steps[kept:]]
        for file in old:
            file.unlink(missing_ok=True)
        return [file.name for file in old]


def warn(line: str) -> None:
    """Say something that does not end a run."""
    events.warn("warning", line)
