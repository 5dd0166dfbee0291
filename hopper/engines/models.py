"""The models that a run trains: who owns their parameters, and how they are updated."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hopper.engines.engine import Engine, TrainState
from hopper.engines.sharded_parameters import ShardedParameters
from hopper.engines.sparse_step import SparseStep
from hopper.micrograph.route import GlobalBatch
from hopper.migrate.flat_model import FlatModel


@dataclass(frozen=True)
class StepReport:
    """The result of one iteration, by number of a model.

    Attributes
    ----------
    losses: the sum of root losses divided by the size of the global batch.
    gradient_norms: the norm over all parameters and learnable rows, before clipping. Empty if the
        configuration does not ask for it.
    left_out: of a model whose update was left out, since not all numbers were finite, what was not
        finite, and on which ranks. The text is empty if a smaller loss scale may help.
    """

    losses: Mapping[int, float]
    gradient_norms: Mapping[int, float] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)


class Models(Sequence[TrainState]):
    """The models of a run, by number. Every rank must call every method.

    Attributes
    ----------
    training: numbers of the models that the next iteration trains.
    on_gradient: callbacks that run after synchronisation and before the update of a lone model,
        when its gradient and its loss are complete.
    """

    def __init__(self, states: Sequence[TrainState]) -> None:
        self._states = states
        self.training: Sequence[int] = range(len(states))
        self.on_gradient: list[Callable[[GlobalBatch, FlatModel], None]] = []

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, number: Any) -> Any:
        return self._states[number]

    @property
    def stop_apart(self) -> bool:
        """Whether a model may stop before others do, which changes what later epochs plan."""
        return len(self) > 1 and any(model.config.train.patience for model in self)

    @abstractmethod
    def clear(self) -> None:
        """Set gradients and losses to zero."""

    @abstractmethod
    def update(self, batch: GlobalBatch) -> StepReport:
        """Complete gradients and losses, and update every model whose numbers are all finite."""

    @abstractmethod
    def hand_out(self, number: int) -> None:
        """Give every rank the parameters of a model that it needs to score it."""

    @abstractmethod
    def complete(self, where: str, *, moments: bool = False, gradients: bool = False) -> None:
        """Complete the parameters on every rank before they are saved.

        Parameters
        ----------
        gradients: whether gradients are completed too, before they are recorded.
        moments: whether all models are saved with their optimisers' states, as in a checkpoint.
            Otherwise the one model that was handed out for scoring is saved without.
        """


class OneModel(Models):
    """One model that all ranks train together.

    Every rank has all of its parameters, unless the engine's ``parameter_servers`` shard them.
    """

    def __init__(self, engine: Engine, sparse: SparseStep) -> None:
        super().__init__([engine.state])
        state = self._state = engine.state
        self._sparse = sparse
        self._parameters = ShardedParameters(state.packed, state.cluster, engine.parameter_servers)

    def clear(self) -> None:
        """Set gradient and loss to zero."""
        self._state.packed.clear()

    def update(self, batch: GlobalBatch) -> StepReport:
        """Sum gradients and loss over ranks, then update parameters and learnable rows.

        Nothing is updated if the sums are not finite.
        """
        state, where, fetched = self._state, batch.where, self._sparse.fetched
        packed, train = state.packed, state.config.train
        loss, own = self._synchronise(where)
        for callback in self.on_gradient:
            callback(batch, packed)
        if not self._is_finite(where):
            own_is_finite = bool(own.isfinite()) and fetched.own_is_finite()
            reason = self._leave_out(loss, own_is_finite, where)
            return StepReport({0: loss}, {0: math.nan} if train.reports_norms else {}, {0: reason})
        packed.scale.update(is_finite=True)
        squares: float | None = None
        if train.reports_norms:
            with state.log.stage("sync", operation="gradient norm"):
                squares = self._parameters.squares(f"the norm of gradients, {where}")
                squares += fetched.squares(f"the norm of learnable rows, {where}")
        factor = state.optimizer.scheduler.factor_at(batch.epoch, batch.iteration)
        with state.log.stage("compute", operation="update", rate_factor=factor):
            scale = state.optimizer.step(train.clip_norm, squares, factor)
            with self._sparse.stage("compute"):
                fetched.step(scale, factor)
        return StepReport({0: loss}, {} if squares is None else {0: math.sqrt(squares)})

    def hand_out(self, number: int) -> None:
        """Complete the parameters if scoring reads whole rows that no server has."""
        graph = self._state.rows.graph
        if not graph.layout.has_whole_rows(graph.schema.target_type()):
            tensors = [self._state.packed.parameters]
            self._parameters.complete(tensors, "completing the model to be scored")

    def complete(self, where: str, *, moments: bool = False, gradients: bool = False) -> None:
        """Complete what only one server has, on every rank."""
        parameters = self._state.packed.parameters
        tensors = [parameters, *([self._state.packed.gradients] if gradients else [])]
        if moments:
            state = self._state.optimizer.state().values()
            tensors += [tensor for tensor in state if tensor.shape == parameters.shape]
        self._parameters.complete(tensors, f"completing the model, {where}")

    def _synchronise(self, where: str) -> tuple[float, Tensor]:
        """Sum gradients and loss over ranks; return the loss, and the total of this rank's own part
        of the sums, which is finite if all of it is."""
        state, packed, sparse = self._state, self._state.packed, self._sparse
        if state.cluster.device.type == "cuda":
            # Kernels that still run count as computing, not as waiting for other ranks.
            with state.log.stage("compute", operation="finish"):
                torch.cuda.current_stream(state.cluster.device).synchronize()
        with sparse.stage("sync"):
            # Their gradients travel while this rank waits and while dense gradients are summed.
            sparse.fetched.start_push()
        with state.log.stage("wait", operation="sync"):
            state.cluster.arrive(f"waiting for all ranks to finish their roots, {where}")
        with state.log.stage("sync"):
            own = packed.accumulated.sum()
            self._parameters.sum_gradients(f"summing gradients, {where}")
            loss = float(packed.loss)
            with sparse.stage("sync"):
                sparse.fetched.push(packed.scale.factor)
        packed.unscale()
        return loss, own

    def _is_finite(self, where: str) -> bool:
        """Return whether loss and gradients, summed over ranks, are finite; the same everywhere."""
        packed, cluster = self._state.packed, self._state.cluster
        is_finite = packed.is_finite() and self._sparse.fetched.is_finite()
        if self._parameters.numbers_apart or self._state.learnable:
            # Not every rank has all sums.
            faults = torch.tensor([int(not is_finite)])
            cluster.all_reduce(faults, "control", f"looking for what is not finite, {where}")
            is_finite = not int(faults)
        return is_finite

    def _leave_out(self, loss: float, own_is_finite: bool, where: str) -> str:
        """Find on which ranks something was not finite, and say so as :func:`explain_left_out`."""
        packed = self._state.packed
        finite = torch.tensor([int(packed.own_loss.isfinite()), int(own_is_finite)])
        operation = f"finding what is not finite, {where}"
        by_rank = self._state.cluster.all_gather(finite, "control", operation)
        losses, gradients = ((column == 0).nonzero()[:, 0].tolist() for column in by_rank.T)
        return explain_left_out(packed, loss, losses or gradients, where)


def explain_left_out(packed: FlatModel, loss: float, ranks: Sequence[int], where: str) -> str:
    """Lower the loss scale of a model whose sums are not finite (docs/howto/divergence.md).

    Parameters
    ----------
    ranks: the ranks on which something was not finite, as far as they are known.

    Returns
    -------
    What was not finite, where and when; "" if a lower loss scale may help.
    """
    may_help = math.isfinite(loss) and packed.scale.factor > 1.0
    packed.scale.update(is_finite=False)
    if may_help:
        return ""
    what = f"the loss is {loss}"
    if math.isfinite(loss):
        what = f"the loss is {loss:.6g}, and its gradient is not finite"
    names = ", ".join(map(str, ranks))
    on = f" on rank{'s' if len(ranks) > 1 else ''} {names}" if ranks else ""
    return f"{what}{on} ({where})"
