"""Plug-ins that would spoil a run, and a source of computed features. No tests of its own."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.train.callbacks import Callback, Running


class Angles:
    """A source of features that are computed: sines and cosines of an id."""

    dtype, dim = "float32", 4

    def __init__(self, *, node_type: str, count: int, server: int) -> None:
        self._step = 2 * np.pi / count

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        angles = ids[:, None] * self._step * np.array([1, 5])
        return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


class Strides:
    """Negatives of links at fixed distances from their ends; ``beyond`` leads past all nodes."""

    def __init__(self, *, counts: Mapping[str, int], seed: int, beyond: int = 0) -> None:
        self._counts, self._seed, self._beyond = counts, seed, beyond

    def draw(
        self,
        heads: Any,
        tails: Any,
        relation: Any,
        side: str,
        count: int,
        epoch: int,
        iteration: int,
    ) -> NDArray[np.int64]:
        nodes = self._counts[relation.dst if side == "tail" else relation.src]
        first = 7 * heads + 3 * tails + 5 * epoch + 11 * iteration + self._seed
        return (first[:, None] + 13 * np.arange(count)) % nodes + self._beyond


class MeanLoss:
    """A loss of a root that depends on how many roots there are."""

    label_kinds = ("class",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Any, labels: Any) -> Any:
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return losses / max(1, len(losses))


class SummedLoss(MeanLoss):
    """One number for all roots together."""

    def root_losses(self, logits: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits, labels)


class CutLoss(MeanLoss):
    """A loss without a gradient of the logits."""

    def root_losses(self, logits: Any, labels: Any) -> Any:
        return torch.zeros(len(logits), requires_grad=True)


class NanOnce:
    """Cross-entropy that is NaN at one call on one of the ranks, which are processes or threads."""

    label_kinds = ("class",)

    def __init__(self, *, classes: int, rank: int, call: int) -> None:
        names = threading.current_thread().name, f"rank-{os.environ.get('RANK')}"
        self._calls_left = call if f"rank-{rank}" in names else -1

    def root_losses(self, logits: Any, labels: Any) -> Any:
        self._calls_left -= 1
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return losses * (math.nan if self._calls_left == 0 else 1.0)


class InfiniteOnce(Callback):
    """Makes the gradient infinite in one iteration, after it was summed over ranks."""

    def __init__(self, *, run_dir: Path) -> None:
        pass

    def gradient(self, run: Running) -> None:
        gradient = next(run.model.parameters()).grad
        if (run.epoch, run.iteration) == (0, 2) and gradient is not None:
            gradient.fill_(math.inf)


class Share:
    """A metric that returns means, which cannot be added up over ranks."""

    name, label_kinds, higher_is_better = "share", ("class",), True

    def __init__(self, *, classes: int) -> None:
        pass

    def sums(self, logits: Any, labels: Any) -> Any:
        return (logits.argmax(1) == labels).double().mean().nan_to_num().reshape(1)

    def value(self, sums: Any) -> float:
        return float(sums)


class Normed:
    """An update of a number that depends on the norm of all."""

    def __init__(self, *, parameters: Any, weight_decay: float) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def update(self, parameters: Any, gradient: Any, learning_rate: float) -> None:
        parameters.sub_(gradient, alpha=learning_rate / float(gradient.norm()))


class Growing:
    """A schedule whose last factor is infinite."""

    def factor(self, step: int, steps: int) -> float:
        return math.inf if step + 1 == steps else 1.0
