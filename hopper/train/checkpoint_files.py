"""The files of a run's checkpoints, in the folder ``checkpoints/`` of the run's folder."""

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
    """The files of a run's checkpoints, named by step: the number of iterations trained before."""

    def __init__(self, run_dir: Path | str) -> None:
        self.folder = Path(run_dir) / FOLDER

    def model(self, step: int) -> Path:
        """Return the file of all models and their progress, which rank 0 writes."""
        return self.folder / f"step-{step}.safetensors"

    def learnable(self, rank: int, step: int) -> Path:
        """Return the file of a rank's learnable rows, or of those that changed."""
        return self.folder / f"learnable-rank-{rank}-step-{step}.safetensors"

    @property
    def steps(self) -> list[int]:
        """The steps of all files of models, newest first."""
        matches = (_MODEL.fullmatch(file.name) for file in self.folder.glob("step-*.safetensors"))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    @property
    def newest(self) -> Path | None:
        """The newest file of models, if there is one."""
        steps = self.steps
        return self.model(steps[0]) if steps else None

    def have_whole_model(self, say: Callable[[str], None]) -> bool:
        """Return whether any file of models passes its checksum.

        Parameters
        ----------
        say: prints a line if there are files but none passes.
        """
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


def warn(line: str) -> None:
    """Print a warning."""
    events.warn("warning", line)
