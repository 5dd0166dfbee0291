"""What a rank holds in memory, but for pages of files that it maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
from torch import Tensor

from hopper.config import Config
from hopper.engines import Engine
from hopper.train.iteration_cost import IterationCost


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank.

    Attributes
    ----------
    process: an interpreter that has imported what trains, and the maps of the graph that it reads.
    model: parameters, gradients and the optimiser's state. learnable: own learnable rows, with
        their optimiser's state.
    plans, rows: what waits in the pipeline, rows of other servers alone.
    training: what forward keeps for backward, and the gradient of the largest of it.
    """

    process: int
    model: int
    learnable: int
    plans: int
    rows: int
    training: int

    @property
    def total(self) -> int:
        """Of all."""
        return sum(asdict(self).values())


class Held:
    """What one engine holds on one rank while it is rehearsed; training is watched in one
    iteration."""

    def __init__(self) -> None:
        self.model = self.learnable = 0
        self._saved: dict[int, int] = {}

    def note(self, engine: Engine[Any, Any]) -> None:
        """Take note of what lasts."""
        for each in engine.models:
            state = each.optimizer.state().values()
            self.model += each.packed.buffer.nbytes + sum(own.nbytes for own in state)
        self.learnable = sum(each.records.stored.nbytes for each in engine.state.learnable)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Within it, take note of what is kept for backward."""
        self._saved = {}
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    def memory(self, config: Config, costs: Sequence[IterationCost], process: int) -> Memory:
        """What a rank holds that trains as the configuration says."""
        own = config.pipeline
        plan = max(each.plan_bytes for each in costs)
        rows = max(each.sent["feature"] for each in costs)
        waiting = min(own.depth * plan, own.nbytes + plan) if own.depth else plan
        # One is read, and one is trained, besides those that wait.
        read = min(own.reads * rows, own.nbytes + rows) + 2 * rows if own.depth else rows
        saved = sum(self._saved.values()) + max(self._saved.values(), default=0)
        return Memory(process, self.model, self.learnable, waiting, read, saved)


def process_bytes() -> int:
    """What this process holds now."""
    return int(psutil.Process().memory_info().rss)
