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
    change: Callable[[Any, np.random.Generator, Any], Any]
    everywhere: bool = False


def tensor_of(packed: Any, generator: np.random.Generator, gradients: bool = True) -> torch.Tensor:
    """Choose a parameter, or its gradient, whose norm counts."""
    named = packed.named_gradients() if gradients else dict(packed.module.named_parameters())
    tensors = [tensor.detach() for tensor in named.values()]
    largest = max(float(tensor.norm()) for tensor in tensors)
    tensors = [tensor for tensor in tensors if float(tensor.norm()) > 1e-3 * largest]
    return tensors[generator.integers(len(tensors))]


def scale_one(factor: float, gradients: bool = True) -> Callable[..., None]:
    return lambda packed, generator, _: tensor_of(packed, generator, gradients).mul_(factor)


def scale_all(factor: float) -> Callable[..., None]:
    return lambda packed, *_: packed.gradients.mul_(factor)


def flip_bias(packed: Any, generator: np.random.Generator, _: Any) -> None:
    biases = [g for name, g in packed.named_gradients().items() if name.endswith("bias")]
    bias = biases[generator.integers(len(biases))]
    bias[bias.abs().argmax()] *= -1


def flip_smallest(packed: Any, generator: np.random.Generator, _: Any) -> None:
    gradient = tensor_of(packed, generator).view(-1)
    gradient[gradient.abs().argsort()[gradient.numel() // 4]] *= -1


def round_to(dtype: torch.dtype) -> Callable[..., Any]:
    return lambda packed, *_: packed.gradients.copy_(packed.gradients.to(dtype))


def use_last(key: str) -> Callable[..., None]:
    """Replace the gradient, or the parameters, by those of the iteration before."""

    def change(packed: Any, _: Any, engine: Any) -> None:
        value = getattr(packed, key)
        now = value.clone()
        value.copy_(engine.kept.get(key, now))
        engine.kept[key] = now

    return change


def transpose(packed: Any, *_: Any) -> None:
    square = next(
        g for g in packed.named_gradients().values() if g.ndim == 2 and len(g) == len(g.T)
    )
    square.copy_(square.T.clone())


def change_edge(kind: str) -> Callable[..., Any]:
    """Drop, double or redirect one drawn edge of the last hop that has any."""

    def change(subgraph: Any, generator: np.random.Generator, _: Any) -> Any:
        (relation, edges), *_rest = subgraph.hops[-1].items()
        indptr, indices, positions = (array.copy() for array in edges)
        place = int(generator.integers(indices.size))
        destination = int(np.searchsorted(indptr, place, "right")) - 1
        if kind == "other":
            indices[place] = (indices[place] + 1) % subgraph.sizes[-1][relation.src]
        elif kind == "drop":
            indices, positions = np.delete(indices, place), np.delete(positions, place)
            indptr[destination + 1 :] -= 1
        else:
            indices = np.insert(indices, place, indices[place])
            positions = np.insert(positions, place, positions[place])
            indptr[destination + 1 :] += 1
        hops = [*subgraph.hops[:-1], {relation: HopEdges(indptr, indices, positions)}]
        return replace(subgraph, hops=hops)

    return change


def change_rows(change_row: Callable[[torch.Tensor, int], None]) -> Callable[..., Any]:
    """Alter one of the feature rows of a pass."""

    def change(work: Any, generator: np.random.Generator, _: Any) -> Any:
        ((name, rows),) = work.features.items()
        rows = rows.to_tensor().clone()
        change_row(rows, int(generator.integers(work.subgraph.num_roots)))
        return replace(work, features={name: rows})

    return change


def swap_rows(rows: torch.Tensor, row: int) -> None:
    rows[[row, row + 1]] = rows[[row + 1, row]]


def wrong_label(work: Any, generator: np.random.Generator, _: Any) -> Any:
    labels = work.labels.clone()
    row = generator.integers(len(labels))
    labels[row] = (labels[row] + 1) % 6
    return replace(work, labels=labels)


def change_sent(change_tensor: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Alter the rows or partial sums that a rank sends."""
    return lambda sent, *_: {kind: change_tensor(rows) for kind, rows in sent.items()}


def without_first(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[:1] * 0, rows[1:]])


def mean_of_means(loss: torch.Tensor, _: Any, engine: Any) -> torch.Tensor:
    return loss * engine.batch_size / (engine.own_roots * engine.state.cluster.world)


FAULTS = {
    "none": Fault("", lambda value, *_: value),
    "a root is dropped": Fault("roots", lambda roots, *_: roots[1:]),
    "a root is trained twice": Fault(
        "roots", lambda roots, _, engine: np.append(roots, engine.batch.of_home(0)[0])
    ),
    "a root is another's": Fault(
        "roots", lambda roots, _, engine: np.append(roots[1:], engine.batch.of_home(0)[0])
    ),
    "no roots at all": Fault("roots", lambda roots, *_: roots[:0]),
    "an edge is dropped": Fault("subgraph", change_edge("drop")),
    "an edge counts twice": Fault("subgraph", change_edge("double")),
    "an edge leads elsewhere": Fault("subgraph", change_edge("other")),
    "another dropout key": Fault(
        "subgraph", lambda graph, *_: replace(graph, iteration_key=graph.iteration_key ^ 1)
    ),
    "draws of another iteration": Fault(
        "batch", lambda batch, *_: replace(batch, iteration=batch.iteration + 1)
    ),
    "a row is missing": Fault("pass", change_rows(lambda rows, row: rows[row].zero_())),
    "two rows are swapped": Fault("pass", change_rows(swap_rows)),
    "a row is off by 1e-6": Fault("pass", change_rows(lambda rows, row: rows[row].mul_(1 + SMALL))),
    "rows are rounded": Fault(
        "pass", change_rows(lambda rows, _: rows.copy_(rows.to(torch.bfloat16)))
    ),
    "a label is wrong": Fault("pass", wrong_label),
    "a mean of means": Fault("loss", mean_of_means, everywhere=True),
    "a divisor of one more": Fault(
        "loss", lambda loss, _, e: loss * e.batch_size / (e.batch_size + 1), everywhere=True
    ),
    "a loss scaled by 1 + 1e-6": Fault(
        "loss", lambda loss, *_: loss * (1 + SMALL), everywhere=True
    ),
    "a loss in float32": Fault("loss", lambda loss, *_: loss.float().double()),
    "stale parameters": Fault("parameters", use_last("parameters")),
    "a parameter off by 1e-6": Fault("parameters", scale_one(1 + SMALL, gradients=False)),
    "a rank's gradient is missing": Fault("gradient", scale_all(0.0)),
    "a rank's gradient counts twice": Fault("gradient", scale_all(2.0)),
    "a rank's gradient of one tensor is missing": Fault("gradient", scale_one(0.0)),
    "a stale gradient": Fault("gradient", use_last("gradients")),
    "a gradient through float32": Fault("gradient", round_to(torch.float32)),
    "a gradient through bfloat16": Fault("gradient", round_to(torch.bfloat16)),
    "a bias with another sign": Fault("gradient", flip_bias),
    "a small entry with another sign": Fault("gradient", flip_smallest),
    "a mean over ranks": Fault("sum", scale_all(0.5), everywhere=True),
    "one tensor off by 1e-6": Fault("sum", scale_one(1 + SMALL), everywhere=True),
    "all tensors off by 1e-6": Fault("sum", scale_all(1 - SMALL), everywhere=True),
    "a transposed gradient": Fault("sum", transpose, everywhere=True),
    "a loss that is told wrong": Fault(
        "sum", lambda packed, *_: packed.loss.mul_(1 + SMALL), everywhere=True
    ),
    "weight decay in the gradient": Fault(
        "sum",
        lambda packed, *_: packed.gradients.add_(packed.parameters, alpha=1e-4),
        everywhere=True,
    ),
    "updates that lose 1e-6": Fault(
        "update", lambda packed, *_: packed.parameters.mul_(1 - SMALL), everywhere=True
    ),
    "a replica that drifts by 1e-6": Fault(
        "update", lambda packed, *_: packed.parameters.mul_(1 + SMALL)
    ),
    "a partial is missing": Fault("sent", change_sent(without_first)),
    "partials through float32": Fault("sent", change_sent(lambda rows: rows.float().double())),
    "partials off by 1e-6": Fault("sent", change_sent(lambda rows: rows * (1 + SMALL))),
    "partials for other nodes": Fault("sent", change_sent(lambda rows: rows.flip(0))),
    "partials without gradients": Fault(
        "sent", change_sent(lambda rows: rows.detach() + 0 * rows), everywhere=True
    ),
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
        self.state, self.kept, self.batch_size, self.own_roots = state, {}, 0, 0
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
        self.batch = batch
        plan = super().plan(self.alter("batch", batch))
        subgraphs = [self.alter("subgraph", subgraph) for subgraph in plan.subgraphs]
        return replace(plan, batch=batch, subgraphs=subgraphs)

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
