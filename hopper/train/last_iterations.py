"""The last finished iterations of a run, which every rank keeps in memory.

Ranks whose connections broke continue from them (:mod:`hopper.train.meet_again`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from cache_server.available_memory import available_memory
from hopper.engines import Engine
from hopper.errors import ClusterError
from hopper.train.checkpoint import Progress, training_states
from hopper.train.tensor_file import fill_tensors, read_facts, write_tensors
from hopper.train.trained_model import TrainedModel

_MOMENTS: Final = 2
_MOST_OF_MEMORY: Final = 0.5


@dataclass
class _Moment:
    """This rank's models after an iteration. The learnable rows of then are not copied: their
    tables can undo updates."""

    tensors: dict[str, Tensor]
    progress: list[Progress]
    decisions: dict[str, Any]

    @property
    def step(self) -> int:
        return max(progress.step for progress in self.progress)


class LastIterations:
    """This rank's training after the last iteration that it finished, and after the one before.

    When a connection breaks, some ranks may have finished an iteration that others have not. No
    rank finishes two, because an iteration needs the messages of all ranks.

    Parameters
    ----------
    models: the engine's models, whose progress is kept and restored.
    """

    def __init__(self, engine: Engine, models: Sequence[TrainedModel]) -> None:
        self._engine = engine
        self._models = models
        self._moments: deque[_Moment] = deque(maxlen=_MOMENTS)

    @property
    def newest_step(self) -> int:
        """The newest step that is kept; -1 = none is."""
        return self._moments[-1].step if self._moments else -1

    def keep(self) -> None:
        """Keep the state as it is now, and drop the one before the previous."""
        live = training_states(self._engine.models)
        if len(self._moments) == _MOMENTS:
            tensors = self._moments.popleft().tensors
        else:
            tensors = {name: torch.empty_like(value) for name, value in live.items()}
        torch._foreach_copy_(list(tensors.values()), list(live.values()))
        progress = [_copy(model.progress) for model in self._models]
        self._moments.append(_Moment(tensors, progress, self._engine.decision_state()))
        for table in self._engine.state.learnable:
            table.remember()

    def write(self, file: BinaryIO, step: int) -> None:
        """Go back to a step that is kept, and write all that this rank needs to continue from it.

        Learnable rows go back in place. Nothing can be trained afterwards.

        Raises
        ------
        ClusterError: the step is not kept, or writing it would take too much memory.
        """
        back = next(
            (n for n, moment in enumerate(reversed(self._moments)) if moment.step == step), None
        )
        if back is None:
            raise ClusterError(
                f"step {step} is not kept in memory; the newest is {self.newest_step}"
            )
        moment = self._moments[-1 - back]
        for table in self._engine.state.learnable:
            table.undo(back + 1)
        tensors = moment.tensors | self._rows(moment.progress)
        size = sum(tensor.nbytes for tensor in tensors.values())
        free = available_memory()
        if size > _MOST_OF_MEMORY * free:
            raise ClusterError(
                f"{size} bytes of models and rows would be copied, {free} bytes of memory are free"
            )
        facts = {
            "engine": self._engine.name,
            "step": step,
            "progress": [asdict(progress) for progress in moment.progress],
            "decisions": moment.decisions,
        }
        write_tensors(file, tensors, facts)

    def restore(self, path: Path) -> None:
        """Restore models, progress, decisions and learnable rows from what :meth:`write` wrote."""
        facts = read_facts(path)
        progress = [Progress(**values) for values in facts["progress"]]
        fill_tensors(training_states(self._engine.models) | self._rows(progress), path)
        for model, restored in zip(self._models, progress, strict=True):
            model.progress = restored
        self._engine.restore_decisions(facts["decisions"])
        for table in self._engine.state.learnable:
            table.finish_restore()

    def _rows(self, progress: Sequence[Progress]) -> dict[str, Tensor]:
        """Return all tensors of learnable rows, with the copies of the best model's if there is
        one."""
        with_kept = progress[0].best_epoch is not None
        rows: dict[str, Tensor] = {}
        for table in self._engine.state.learnable:
            rows |= table.state(with_kept)
        return rows


def _copy(progress: Progress) -> Progress:
    # Only the list grows in place.
    return replace(progress, losses=list(progress.losses))
