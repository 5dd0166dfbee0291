"""How a rank computes its nodes together with the others, on graphs of one node type and of
several."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.engine import TrainState
from hopper.models import GNN
from hopper.models.layer import SumLayer
from hopper.models.relational import HGNN
from hopper.ops import in_full
from hopper.partials import (
    IterationPlan,
    LayerPlan,
    Planner,
    RowExchange,
    TypedForward,
    TypedPlan,
    TypedPlanner,
    choose_wires,
    make_typed_planner,
)

_ROUNDED: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def wire_dtype(config: Config) -> torch.dtype | None:
    """What rows are rounded to on their way; None where they are not."""
    name = config.cooperative.wire
    return None if name == "exact" else _ROUNDED[name]


class Pass(Protocol):
    """One rank's part of an iteration, for a kind of graph: a plan and what is made of it."""

    @property
    def planner(self) -> Planner | TypedPlanner:
        """What makes the plans."""

    def describe(self, plan: Any) -> list[dict[str, Any]]:
        """The work of every layer, for the run's log."""

    def nodes(self, plan: Any) -> dict[str, list[NDArray[np.int64]]]:
        """By name of a type, the nodes whose input rows this rank reads."""

    def read(self, plan: Any) -> tuple[Any, Tensor]:
        """This rank's input rows; and its roots' labels."""

    def logits(self, plan: Any, rows: Any, where: str) -> Tensor:
        """[roots, out]: of this rank's roots; every rank has to call it.

        Parameters
        ----------
        rows: what :meth:`read` found. where: names the moment in errors.
        """


class HomogeneousPass:
    """Forward over a graph of one node type and one relation; a :class:`Pass`.

    Parameters
    ----------
    channel: what plans are told over.

    Raises
    ------
    RequestError: the model is no stack of layers.
    """

    def __init__(self, state: TrainState, channel: Cluster) -> None:
        self.state = state
        trainer, graph = state.trainer, state.rows.graph
        node_type = graph.schema.node_types[trainer.node_type]
        self._travels_as = wire_dtype(state.config) or trainer.dtype
        self._wires = choose_wires(
            state.packed.module, node_type.feature_dim or 0, self._travels_as
        )
        assert isinstance(state.packed.module, GNN)
        self._model = state.packed.module
        self.planner = Planner(
            trainer.sampler,
            graph.placement(state.cluster.ranks_per_server),
            channel,
            [self._model.layer(index) for index in range(len(self._wires))],
            self._wires,
            trainer.dtype,
        )

    def describe(self, plan: IterationPlan) -> list[dict[str, Any]]:
        """See :class:`Pass`."""
        return [each.describe(wire) for each, wire in zip(plan.layers, self._wires, strict=True)]

    def nodes(self, plan: IterationPlan) -> dict[str, list[NDArray[np.int64]]]:
        """See :class:`Pass`."""
        return {self.state.trainer.node_type: [plan.nodes]}

    def read(self, plan: IterationPlan) -> tuple[Tensor, Tensor]:
        """[n, dim] this rank's input rows; and its roots' labels."""
        state, trainer = self.state, self.state.trainer
        rows = trainer.read_rows(state.rows, "features", plan.nodes).to(trainer.dtype)
        stored = trainer.read_rows(state.rows, "labels", plan.nodes[: plan.roots])
        return rows, trainer.objective.shaped(stored)

    def logits(self, plan: IterationPlan, rows: Tensor, where: str) -> Tensor:
        """See :class:`Pass`."""
        for index, layer in enumerate(plan.layers):
            rows = self._layer(index, layer, rows, f"{where}, layer {index}")
        return rows

    def _layer(self, index: int, plan: LayerPlan, h_own: Tensor, where: str) -> Tensor:
        """[destinations, width]: the new rows of this rank's destinations.

        Parameters
        ----------
        h_own: [num_own, width], this rank's rows of the layer before.
        """
        model, block, count = self._model, plan.block, plan.block.num_dst
        layer, log = model.layer(index), self.state.log
        with log.stage("compute", operation="project", layer=index):
            ready = model.prepare(index, plan.own, h_own)
            rows = layer.project(ready) if self._wires[index].projected else ready
            sent = plan.sending.select(rows).to(self._travels_as)
        exchange = RowExchange(
            self.state.cluster,
            log,
            sent,
            plan.sending.lengths,
            plan.counts,
            f"exchanging rows, {where}",
        )
        received = exchange.finish()
        with log.stage("compute", operation="aggregate", layer=index):
            rows = in_full(rows)
            rows = torch.cat((rows, received.to(rows.dtype)))
            if not self._wires[index].projected:
                rows = layer.project(rows)
            if plan.weights is None:
                combined = layer.aggregate(block, rows, ready[:count])
            else:
                assert isinstance(layer, SumLayer)
                combined = layer.combine(block, rows, plan.weights, ready[:count])
        with log.stage("compute", operation="update", layer=index):
            out = layer.update(ready[:count], combined)
            return model.finish(index, block, h_own[:count], out)


class TypedPass:
    """Forward over a graph of several node types; a :class:`Pass`, parameters as those of
    :class:`HomogeneousPass`."""

    def __init__(self, state: TrainState, channel: Cluster) -> None:
        self.state = state
        model = state.packed.module
        assert isinstance(model, HGNN)
        self._travels_as = wire_dtype(state.config) or state.trainer.dtype
        self._forward = TypedForward(state.cluster, state.log, model, self._travels_as)
        self.planner = make_typed_planner(
            model,
            state.trainer.sampler,
            state.rows.graph.placement(state.cluster.ranks_per_server),
            channel,
            self._travels_as,
        )

    def describe(self, plan: TypedPlan) -> list[dict[str, Any]]:
        """See :class:`Pass`."""
        row_bytes = 2 * self.state.config.model.hidden * self._travels_as.itemsize
        return [layer.describe(row_bytes) for layer in plan.layers]

    def nodes(self, plan: TypedPlan) -> dict[str, list[NDArray[np.int64]]]:
        """See :class:`Pass`."""
        return {name: [ids] for name, ids in plan.nodes.items()}

    def read(self, plan: TypedPlan) -> tuple[dict[str, Tensor], Tensor]:
        """By type, [n, dim] this rank's input rows; and its roots' labels."""
        state, trainer = self.state, self.state.trainer
        rows = {
            name: trainer.input_rows_of(state.rows, name, ids)
            for name, ids in plan.nodes.items()
            if ids.size
        }
        target = trainer.node_type
        stored = trainer.read_rows(state.rows, "labels", plan.nodes[target][: plan.roots])
        return rows, trainer.objective.shaped(stored)

    def logits(self, plan: TypedPlan, rows: dict[str, Tensor], where: str) -> Tensor:
        """See :class:`Pass`."""
        model = self._forward.model
        first = {
            each: model.first_rows(each, rows.get(each), plan.nodes[each].size)
            for each in model.types
        }
        return self._forward.logits(plan, first, where)
