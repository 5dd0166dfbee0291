"""The memory that a rank needs, without the pages of files that it maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hopper.config import Config
from hopper.engines import TrainStep
from hopper.rehearsal.measure import IterationCost


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank's memory.

    Attributes
    ----------
    process: the interpreter with imported modules, and the graph's maps that it reads.
    model: parameters, gradients and the optimiser's state.
    learnable: the rank's learnable rows and their optimiser's state.
    plans: plans in the pipeline.
    rows: rows of other servers in the pipeline.
    training: tensors that forward saves for backward, and a gradient as large as the largest.
    """

    process: int
    model: int
    learnable: int
    plans: int
    rows: int
    training: int

    @property
    def total(self) -> int:
        """The sum of all."""
        return sum(asdict(self).values())


class MemoryMeter:
    """Measures the memory of one engine on one rank in a rehearsal."""

    def __init__(self) -> None:
        self._model = self._learnable = 0
        self._saved: dict[int, int] = {}

    def count_engine(self, engine: TrainStep[Any, Any]) -> None:
        """Count the memory that an engine holds during the whole run."""
        for model in engine.models:
            state = model.optimizer.state().values()
            self._model += model.packed.buffer.nbytes + sum(tensor.nbytes for tensor in state)
        self._learnable = sum(share.records.stored.nbytes for share in engine.state.learnable)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count the tensors that are saved for backward during the block: one iteration."""
        self._saved = {}
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    def memory(self, config: Config, costs: Sequence[IterationCost], process: int) -> Memory:
        """Return the memory of a rank that trains with a configuration, from rehearsed costs."""
        pipeline = config.pipeline
        plan = max(cost.plan_bytes for cost in costs)
        rows = max(cost.sent["feature"] for cost in costs)
        waiting, read_bytes = plan, rows
        if pipeline.depth:
            waiting = min(pipeline.depth * plan, pipeline.nbytes + plan)
            # Besides the waiting iterations one is being read, and one is trained.
            read_bytes = min(pipeline.reads * rows, pipeline.nbytes + rows) + 2 * rows
        saved = sum(self._saved.values()) + max(self._saved.values(), default=0)
        return Memory(process, self._model, self._learnable, waiting, read_bytes, saved)
