"""NeutronStar: full batches, whose dependencies are fetched or computed again, whichever takes less
time (Wang et al., NeutronStar, SIGMOD 2022, as HopGNN compares it, section 7.7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np
import torch

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.cooperative import Cooperative, CooperativeInputs, CooperativePlan
from hopper.engines.engine import TrainState
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.features import PartitionedRows, PregatheredRows
from hopper.graph.block import Block, Nodes
from hopper.graph.schema import Relation
from hopper.micrograph.route import GlobalBatch
from hopper.models import GNN
from hopper.partials import Costs, Sums, Wires, choose_kept, keep_all_or_none
from hopper.partition.layouts import Replicated

Dependencies = Literal["hybrid", "fetch", "recompute"]
_COSTS: Final = "dependency_costs"
_NODES, _EDGES_A_NODE, _REPEATS = 4096, 10, 3
_MESSAGE_BYTES: Final = 1 << 20


class NeutronStar(Cooperative):
    """Each rank computes the nodes it owns, and of what these read of other ranks some nodes again.

    Under ``cooperative`` every row that another rank owns is fetched. Here a rank may compute it
    from the features of its neighbourhood instead, which are fetched once for all epochs: forward
    and backward, once for every rank that does so. Which takes less is estimated node by node from
    times that are measured when training begins.

    Parameters
    ----------
    dependencies: "hybrid", or one way for all: "fetch" or "recompute".
    """

    name = "neutronstar"
    layouts = (Replicated,)
    reads_remote_rows = True
    may_win = False

    @classmethod
    def check(cls, request: Request) -> None:
        """See :class:`hopper.engines.engine.Engine`: full batches of graphs of one node type."""
        config = request.config
        if config.model.typed:
            raise RequestError(
                f"train.engine: neutronstar knows no node types; expected a model that reads one "
                f"relation, given {config.model.name!r}"
            )
        if not request.trains_full_batches:
            raise RequestError(
                "sampler.kind: neutronstar trains full batches, whose dependencies are the same in "
                'every epoch; expected "full", or "temporal" with fanouts of -1 and a '
                "train.batch_size that takes all training nodes; given "
                f'"{config.sampler.kind}", fanouts {list(config.sampler.sizes)} and '
                f"{config.train.batch_size}"
            )
        if config.train.micro_batch:
            raise RequestError(
                f"train.micro_batch: neutronstar trains all roots in one pass; expected 0, given "
                f"{config.train.micro_batch}"
            )
        if request.reads.learned:
            raise RequestError(
                f"learnable.types: neutronstar keeps input rows of other ranks for all epochs; "
                f"expected none, given {request.reads.learned}"
            )

    def __init__(self, state: TrainState, dependencies: Dependencies = "hybrid") -> None:
        super().__init__(state)
        if dependencies not in ("hybrid", "fetch", "recompute"):
            raise RequestError(
                f"train.engine_options.dependencies: expected hybrid, fetch or recompute, given "
                f"{dependencies!r}"
            )
        self._dependencies = dependencies
        self._target = state.rows.graph.schema.target_type()
        self._costs: Costs | None = None
        self._fetched: PregatheredRows | None = None
        """features, with those of other servers' nodes at hand"""
        if dependencies == "hybrid":
            self._costs = self._measure()
        self._keep(self._costs)

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """See :class:`hopper.engines.engine.Engine`."""
        return [cls.name, config.train.engine_options]

    def plan(self, batch: GlobalBatch) -> CooperativePlan:
        """See :class:`hopper.engines.engine.Engine`."""
        told = self.decisions(batch.epoch)
        if told and self.replayed.get(_COSTS, told[_COSTS]) != told[_COSTS]:
            self.restore_decisions(self.replayed)
        return super().plan(batch)

    def read(self, plan: CooperativePlan, rows: PartitionedRows) -> CooperativeInputs:
        """See :class:`hopper.engines.engine.Engine`: features are fetched once for all iterations;
        what links are compared with, and so what is read, may be others in each."""
        with self.state.log.stage("gather", operation="dependencies"):
            held = self._fetched
            here = self._fetched = (
                PregatheredRows(rows, plan.reads)
                if held is None
                else held.with_more(rows, plan.reads)
            )
        return self._inputs(plan, here)

    def sees_epoch(self, epoch: int) -> bool:
        """See :class:`hopper.engines.engine.Engine`: times of another run are told when its epoch
        begins."""
        return self._costs is None or not self.state.config.train.replay

    def decisions(self, epoch: int) -> dict[str, Any]:
        """See :class:`hopper.engines.engine.Engine`: the times that decide what is fetched."""
        if self._costs is None:
            return {}
        costs = self._costs
        told = [costs.project, *costs.destination, *costs.edge, *costs.fetch]
        return {_COSTS: told}

    def decision_state(self) -> dict[str, Any]:
        """See :class:`hopper.engines.engine.Engine`."""
        return self.decisions(0)

    def restore_decisions(self, state: Mapping[str, Any]) -> None:
        """See :class:`hopper.engines.engine.Engine`."""
        if self._costs is None or _COSTS not in state:
            return
        told, expected = state[_COSTS], 3 * len(self._costs.fetch) + 1
        if len(told) != expected:
            raise RequestError(
                f"train.replay: the run was of another number of layers: expected {expected} times "
                f"of dependencies, found {len(told)}"
            )
        self._costs = _costs_from(told)
        self._keep(self._costs)

    def _keep(self, costs: Costs | None) -> None:
        """Settle which nodes of other ranks this one computes."""
        graph, cluster, sampler = self.state.rows.graph, self.state.cluster, self._planner.sampler
        own = np.zeros(graph.book.total(self._target), np.bool_)
        placement = graph.placement(cluster.ranks_per_server)
        own[placement.owned(self._target, cluster.rank)] = True
        hops = len(sampler.fanouts)
        if costs is None:
            kept = keep_all_or_none(own, hops, keep=self._dependencies == "recompute")
        else:
            (topology,) = sampler.topologies.values()
            kept = choose_kept(topology, own, costs)
        self._planner.kept = [{self._target: mask} for mask in kept]
        self._fetched = None

    def _measure(self) -> Costs:
        """What things take here; the most that it takes any rank. Every rank has to call it."""
        model, cluster, wires = self.state.packed.module, self.state.cluster, self._wires
        assert isinstance(model, GNN)
        widths = [self._stack.widths[self._target]]
        rows = self._stack.lone_rows()
        widths += [each[self._target].shape[1] for each in rows[1:]]
        with self.state.trainer.products():
            layers = [_layer_seconds(model, index, width) for index, width in enumerate(widths)]
        byte = _byte_seconds(cluster)
        # The first hop is that of the last layer.
        hops = list(zip(reversed(layers), reversed(wires), strict=True))
        told = [layers[0][0], *(each[1] for each, _ in hops), *(each[2] for each, _ in hops)]
        told += [byte * _row_bytes(own) for _, own in hops]
        measured = torch.tensor(told, dtype=torch.float64)
        everyone = cluster.all_gather(measured, "control", "agreeing on what dependencies cost")
        return _costs_from(everyone.amax(0).tolist())


def _costs_from(told: list[float]) -> Costs:
    hops = (len(told) - 1) // 3
    project, rest = told[0], told[1:]
    destination, edge, fetch = (tuple(rest[i * hops : (i + 1) * hops]) for i in range(3))
    return Costs(project, destination, edge, fetch)


def _row_bytes(wires: Wires) -> int:
    """Of a row that travels for a layer, there and back, in the form that takes fewer."""
    return min(form.row_bytes for kind, form in wires.forms.items() if not isinstance(kind, Sums))


def _byte_seconds(cluster: Cluster) -> float:
    """What it takes a rank to receive a byte while all ranks send to all others; every rank has to
    call it."""
    if cluster.world == 1:
        return 0.0
    sent = torch.zeros(cluster.world * _MESSAGE_BYTES, dtype=torch.uint8, device=cluster.device)
    lengths = [_MESSAGE_BYTES] * cluster.world
    best = float("inf")
    for _ in range(_REPEATS):
        cluster.arrive("measuring what a message costs")
        begun = _now(cluster.device, cluster.clock)
        cluster.start_exchange(
            *(sent, lengths, lengths, "control", "measuring what a message costs")
        ).finish()
        best = min(best, _now(cluster.device, cluster.clock) - begun)
    return best / ((cluster.world - 1) * _MESSAGE_BYTES)


def _layer_seconds(model: GNN, index: int, width: int) -> tuple[float, float, float]:
    """What a layer takes for a source, for a destination, and for an edge."""
    sources = _seconds(model, index, width, destinations=1, edges=1)
    few = _seconds(model, index, width, destinations=_NODES, edges=_NODES)
    many = _seconds(model, index, width, destinations=_NODES, edges=_EDGES_A_NODE * _NODES)
    edge = max(0.0, many - few) / ((_EDGES_A_NODE - 1) * _NODES)
    destination = max(0.0, (few - sources) / _NODES - edge)
    return sources / _NODES, destination, edge


def _seconds(model: GNN, index: int, width: int, *, destinations: int, edges: int) -> float:
    """What a layer takes, forward and backward, the least of some."""
    parameter = next(model.parameters())
    device, dtype = parameter.device, parameter.dtype
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(_NODES, width, generator=draws).to(device, dtype).requires_grad_(index > 0)
    indices = torch.randint(_NODES, (edges,), generator=draws).to(device)
    indptr = (torch.arange(destinations + 1) * edges // destinations).to(device)
    ids = torch.arange(_NODES, device=device)
    nodes = Nodes("node", ids, ids)
    block = Block(
        *(_NODES, destinations, indptr, indices, Relation("node", "edge", "node")),
        *(torch.zeros_like(indices), nodes, nodes.first(destinations)),
        edge_features=rows.new_zeros(edges, model.layer(index).edge_dim),
    )
    own = [each for each in model.layer(index).parameters() if each.requires_grad]
    wanted = [*own, rows] if index else own
    best = float("inf")
    for _ in range(_REPEATS):
        begun = _now(device)
        out = model.step(index, block, rows)
        torch.autograd.grad(out.sum(), wanted, allow_unused=True)
        best = min(best, _now(device) - begun)
    return best


def _now(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds on a clock, when what was launched has been done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()
