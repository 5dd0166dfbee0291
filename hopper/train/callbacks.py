"""The protocol of all that follows a run: consoles, trackers of experiments, classes of users.

``train.callbacks`` names classes that every rank calls, for what no option covers. Those of
``train.loggers`` are called on rank 0 alone, and a run goes on without one that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from hopper.config import Config
from hopper.features.cached import Lookups


@dataclass
class Running:
    """A run as its callbacks see it.

    One thread trains and others may read, so values are replaced and never changed in place.

    Attributes
    ----------
    model: the model with this rank's parameters. All ranks have the same, except that ``raf`` and
        ``p3`` train some parameters on one rank only; after an epoch every rank has all of them. Of
        several trials, it is the first one's.
    config: the configuration. Choices such as "auto" engines are settled.
    rank: this rank.
    ranks: the number of ranks.
    iterations: the number of iterations of an epoch.
    batch: the number of roots of a whole global batch.
    epoch, iteration: the present ones; between iterations, the next ones.
    step: iterations of the whole run before that one.
    resumed_step: the step of the checkpoint that training continued from; 0 = none.
    roots: number of roots of all global batches that this process trained.
    losses: by number of the model, its loss in the last iteration.
    iteration_seconds: seconds of the last iteration on this rank.
    sent_bytes: bytes that this rank has sent since it started.
    lookups: by node type or table of learnable rows, (hits, misses) in caches of this rank.
    summary: at the end, on rank 0, the content of summary.json.
    """

    model: torch.nn.Module
    config: Config
    rank: int
    ranks: int
    iterations: int
    batch: int
    epoch: int = 0
    iteration: int = 0
    step: int = 0
    resumed_step: int = 0
    roots: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)
    iteration_seconds: float = 0.0
    sent_bytes: int = 0
    lookups: Mapping[str, Lookups] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)


class Callback:
    """Base class of callbacks and loggers. Derive from it and define the methods that you need.

    The class is called with the keyword ``run_dir``, the run's folder as a :class:`pathlib.Path`,
    and the options of the configuration. Its state is not part of checkpoints.

    A class in ``train.callbacks`` is called on every rank, and must make the same changes on all of
    them. An error that it raises ends the run. A class in ``train.loggers`` is called on rank 0. If
    it raises an error, the run says so once and goes on without it.
    """

    def start(self, run: Running) -> None:
        """Called when training begins, or goes on (``run.config.train.resume`` is then true)."""

    def begin_epoch(self, run: Running) -> None:
        """Called before the first iteration of an epoch, or of what is left of it."""

    def gradient(self, run: Running) -> None:
        """Called in every iteration before the update, unless several trials are trained.

        ``parameter.grad`` is the sum over all ranks, before clipping.
        """

    def iteration(self, run: Running) -> None:
        """Called after every iteration, when parameters are updated."""

    def epoch(self, run: Running, record: Mapping[str, Any]) -> bool | None:
        """Called after every epoch, and after its evaluation if there is one.

        A resumed run trains the epochs since its checkpoint again, and calls this again.

        Parameters
        ----------
        record: the epoch's line in epochs.jsonl; see
            :class:`hopper.train.results.EpochRecord`.

        Returns
        -------
        True ends the training on all ranks.
        """
        return None

    def finish(self, run: Running) -> None:
        """Called at the end of a run that succeeded. The model is the best one."""

    def close(self) -> None:
        """Release all resources. This is the last call.

        It comes at a run's end, after an error, and when a signal ends the process. It may come
        before :meth:`start`. Errors are said, and change nothing.
        """
