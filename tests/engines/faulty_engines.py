"""Engines with one small fault each, which the A/B has to refuse. No tests of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from hopper.engines.cooperative import Cooperative
from hopper.engines.data_parallel import ZeroHop
from hopper.engines.hop import Hop
from hopper.micrograph.subgraph import HopEdges

SMALL = 1e-6
Change = Callable[[Any, np.random.Generator, Any], Any]


class Fault(NamedTuple):
    """Where an engine goes wrong, on which ranks, and how.

    Attributes
    ----------
    stage: what is altered; see :meth:`Faulty.alter`'s callers.
    change: takes the right value, a generator, and the engine; returns the wrong value, or alters
        the right one in place.
    everywhere: on all ranks; otherwise on rank 1 alone.
    """

    stage: str
    change: Change
    everywhere: bool = False


def scale_one(packed: Any, generator: np.random.Generator, _: Any) -> None:
    """Alter the gradient of a parameter whose norm counts."""
    tensors = [*packed.named_gradients().values()]
    largest = max(float(tensor.norm()) for tensor in tensors)
    tensors = [tensor for tensor in tensors if float(tensor.norm()) > 1e-3 * largest]
    tensors[generator.integers(len(tensors))].mul_(1 + SMALL)


def use_last(packed: Any, _: Any, engine: Any) -> None:
    """Replace the parameters by those of the iteration before."""
    now = packed.parameters.clone()
    packed.parameters.copy_(now if engine.kept is None else engine.kept)
    engine.kept = now


def drop_edge(subgraph: Any, generator: np.random.Generator, _: Any) -> Any:
    """Drop one drawn edge of the last hop."""
    (relation, edges), *_rest = subgraph.hops[-1].items()
    place, indptr = int(generator.integers(edges.indices.size)), edges.indptr.copy()
    indptr[int(np.searchsorted(indptr, place, "right")) :] -= 1
    kept = (np.delete(array, place) for array in (edges.indices, edges.positions))
    hops = [*subgraph.hops[:-1], {relation: HopEdges(indptr, *kept)}]
    return replace(subgraph, hops=hops)


def change_row(work: Any, generator: np.random.Generator, _: Any) -> Any:
    """Alter one of the feature rows of a pass."""
    ((name, rows),) = work.features.items()
    rows = rows.to_tensor().clone()
    rows[int(generator.integers(work.subgraph.num_roots))].mul_(1 + SMALL)
    return replace(work, features={name: rows})


def wrong_label(work: Any, generator: np.random.Generator, _: Any) -> Any:
    labels = work.labels.clone()
    row = generator.integers(len(labels))
    labels[row] = (labels[row] + 1) % 6
    return replace(work, labels=labels)


def change_sent(change_tensor: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Alter the rows or partial sums that a rank sends."""
    return lambda sent, *_: {kind: change_tensor(rows) for kind, rows in sent.items()}


def mean_of_means(loss: torch.Tensor, _: Any, engine: Any) -> torch.Tensor:
    return loss * engine.batch_size / (engine.own_roots * engine.state.cluster.world)


FAULTS = {
    "none": Fault("", lambda value, *_: value),
    "a root is dropped": Fault("roots", lambda roots, *_: roots[1:]),
    "an edge is dropped": Fault("subgraph", drop_edge),
    "another dropout key": Fault(
        "subgraph", lambda graph, *_: replace(graph, iteration_key=graph.iteration_key ^ 1)
    ),
    "a row is off by 1e-6": Fault("pass", change_row),
    "a label is wrong": Fault("pass", wrong_label),
    "a mean of means": Fault("loss", mean_of_means, everywhere=True),
    "a loss in float32": Fault("loss", lambda loss, *_: loss.float().double()),
    "stale parameters": Fault("parameters", use_last),
    "a rank's gradient is missing": Fault("gradient", lambda packed, *_: packed.gradients.zero_()),
    "a mean over ranks": Fault("sum", lambda packed, *_: packed.gradients.mul_(0.5), True),
    "one tensor off by 1e-6": Fault("sum", scale_one, everywhere=True),
    "a loss that is told wrong": Fault("sum", lambda packed, *_: packed.loss.mul_(1 + SMALL), True),
    "a replica that drifts by 1e-6": Fault(
        "update", lambda packed, *_: packed.parameters.mul_(1 + SMALL)
    ),
    "a partial is missing": Fault(
        "sent", change_sent(lambda rows: torch.cat([rows[:1] * 0, rows[1:]]))
    ),
    "partials through float32": Fault("sent", change_sent(lambda rows: rows.float().double())),
}


class Faulty:
    """What all faulty engines share; an engine follows in the order of base classes.

    Parameters
    ----------
    fault: a key of :data:`FAULTS`.
    seed: of the place of the fault, where it has one.
    """

    def __init__(self, state: Any, *, fault: str, seed: int = 0) -> None:
        super().__init__(state)
        self._fault, self._seed = FAULTS[fault], seed
        self._acts = self._fault.everywhere or state.cluster.rank == 1
        self.state, self.kept, self.batch_size, self.own_roots = state, None, 0, 0
        objective, loss_sum = state.trainer.objective, state.trainer.objective.loss_sum

        def wrong_loss_sum(logits: Any, labels: Any) -> Any:
            self.own_roots = max(1, len(labels))
            return self.alter("loss", loss_sum(logits, labels))

        objective.loss_sum = wrong_loss_sum
        cluster, step = state.cluster, state.optimizer.step
        all_reduce = cluster.all_reduce

        def wrong_all_reduce(tensor: Any, cause: str, *rest: Any, **options: Any) -> None:
            all_reduce(tensor, cause, *rest, **options)
            if tensor is state.packed.accumulated:
                self.alter("sum", state.packed)

        def wrong_step(*arguments: Any) -> float:
            scale = step(*arguments)
            self.alter("update", state.packed)
            return scale

        cluster.all_reduce, state.optimizer.step = wrong_all_reduce, wrong_step

    def alter(self, stage: str, value: Any) -> Any:
        """Alter a value, if the fault is one of this stage."""
        if stage != self._fault.stage or not self._acts:
            return value
        with torch.no_grad() if stage not in ("loss", "sent") else torch.enable_grad():
            changed = self._fault.change(value, np.random.default_rng(self._seed), self)
        return value if changed is None else changed

    def compute(self, plan: Any, inputs: Any) -> None:
        packed, self.batch_size = self.state.packed, plan.batch.size
        right = packed.parameters.clone()
        self.alter("parameters", packed)
        super().compute(plan, inputs)
        packed.parameters.copy_(right)
        self.alter("gradient", packed)


class FaultyHop(Faulty, Hop):
    """`hop` with a fault."""


class FaultyZeroHop(Faulty, ZeroHop):
    """`zero_hop` with a fault."""

    def choose_roots(self, batch: Any) -> Any:
        return self.alter("roots", super().choose_roots(batch))

    def plan(self, batch: Any) -> Any:
        plan = super().plan(batch)
        subgraphs = [self.alter("subgraph", subgraph) for subgraph in plan.subgraphs]
        return replace(plan, subgraphs=subgraphs)

    def read(self, plan: Any, rows: Any) -> Any:
        return [self.alter("pass", work) for work in super().read(plan, rows)]


class FaultyCooperative(Faulty, Cooperative):
    """`cooperative` with a fault."""

    def __init__(self, state: Any, *, fault: str, seed: int = 0) -> None:
        super().__init__(state, fault=fault, seed=seed)
        start = self._forward._start
        self._forward._start = lambda plan, sent, *rest: start(
            plan, self.alter("sent", sent), *rest
        )
