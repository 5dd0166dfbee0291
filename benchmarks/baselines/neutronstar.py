"""NeutronStar: full batches, whose remote rows are fetched or computed again.

Whichever takes less time is chosen for each row. Wang et al., NeutronStar, SIGMOD 2022, as HopGNN
compares with it in section 7.7.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster.cluster import Cluster
from hopper.engines import Request, TrainState
from hopper.engines.cooperative import Cooperative, CooperativeInputs, CooperativePlan
from hopper.errors import RequestError
from hopper.features import InputRows, PartitionedRows, PregatheredRows
from hopper.graph.block import Block, Nodes
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.models import GNN
from hopper.partials import LayerTransfer, Sums
from hopper.partition.layout import Replicated

Dependencies = Literal["hybrid", "fetch", "recompute"]
_NODES, _EDGES_A_NODE, _REPEATS = 4096, 10, 3
_MESSAGE_BYTES: Final = 1 << 20


Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Costs:
    """Seconds that pieces of work take, forward and backward.

    Attributes
    ----------
    project: for the first layer's own work on one input row.
    destination: by hop, for one destination of its layer.
    edge: by hop, for one edge of its layer.
    fetch: by hop, for one row that its layer reads of another rank.
    """

    project: float
    destination: tuple[float, ...]
    edge: tuple[float, ...]
    fetch: tuple[float, ...]


class NeutronStar(Cooperative):
    """Each rank computes its own nodes, and recomputes some nodes of other ranks that these read.

    Under ``cooperative`` a rank fetches every row that another rank owns. Here it may compute the
    row itself, forward and backward, from the features of its neighbourhood. These are fetched once
    for all epochs. The cheaper way is estimated for each node from times that are measured when
    training begins. So a run that is repeated may compute other rows, and differ by rounding.

    Parameters
    ----------
    dependencies: "hybrid" chooses for each node; "fetch" and "recompute" are one way for all.
    """

    # Its options decide which rows it reads.
    spec = replace(
        Cooperative.spec,
        name="neutronstar",
        layouts=(Replicated,),
        reads_remote_rows=True,
        plan_options=("train.engine_options",),
    )

    @classmethod
    def check(cls, request: Request) -> None:
        """Refuse all but full batches of graphs of one node type."""
        config = request.config
        if config.model.typed:
            raise RequestError(
                f"train.engine: neutronstar knows no node types; expected a model that reads one "
                f"relation, given {config.model.name!r}"
            )
        if not _trains_full_batches(request):
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
        """the features of this server, and those that were fetched from others"""
        if dependencies == "hybrid":
            self._costs = self._measure()
        self._keep(self._costs)

    def read(self, plan: CooperativePlan, rows: InputRows) -> CooperativeInputs:
        """Fetch features once for all iterations.

        Where links are predicted, negatives differ between iterations, so later iterations may
        fetch more.
        """
        assert isinstance(rows, PartitionedRows)
        with self.state.log.stage("gather", operation="dependencies"):
            self._fetched = PregatheredRows(rows, plan.reads, self._fetched)
        return super().read(plan, self._fetched)

    def _keep(self, costs: Costs | None) -> None:
        """Decide which nodes of other ranks this rank computes itself."""
        graph, cluster, sampler = self.state.rows.graph, self.state.cluster, self.planner.sampler
        is_owned = np.zeros(graph.book.total(self._target), np.bool_)
        placement = graph.placement(cluster.ranks_per_server)
        is_owned[placement.owned(self._target, cluster.rank)] = True
        hops = len(sampler.fanouts)
        if costs is None:
            is_kept = ~is_owned & (self._dependencies == "recompute")
            masks = [is_kept] * hops
        else:
            (topology,) = sampler.topologies.values()
            masks = choose_kept(topology, is_owned, costs)
        self.planner.kept = [{self._target: mask} for mask in masks]
        self._fetched = None

    def _measure(self) -> Costs:
        """Measure times on every rank, and return the maximum over ranks.

        Every rank must call it.
        """
        model, cluster, transfers = self.state.packed.module, self.state.cluster, self.transfers
        assert isinstance(model, GNN)
        widths = [self.stack.widths[self._target]]
        rows = self.stack.lone_rows()
        widths += [layer_rows[self._target].shape[1] for layer_rows in rows[1:]]
        with self.state.trainer.products():
            layers = [_layer_seconds(model, index, width) for index, width in enumerate(widths)]
        byte = _byte_seconds(cluster)
        # The first hop belongs to the last layer.
        layers_by_hop = layers[::-1]
        seconds = [layers[0][0]]
        seconds += [destination for _, destination, _ in layers_by_hop]
        seconds += [edge for _, _, edge in layers_by_hop]
        seconds += [byte * _row_bytes(transfer) for transfer in reversed(transfers)]
        measured = torch.tensor(seconds, dtype=torch.float64)
        by_rank = cluster.all_gather(measured, "control", "agreeing on what dependencies cost")
        return _costs_from(by_rank.amax(0).tolist())


def _trains_full_batches(request: Request) -> bool:
    """Return whether every iteration trains all roots and reads all of their neighbours."""
    config = request.config.sampler
    if config.kind == "full":
        return True
    roots = request.config.train.batch_size * request.ranks
    takes_all = request.reads_times and all(size == -1 for size in config.sizes)
    return takes_all and roots >= request.graph.split("train").size


def _costs_from(seconds: list[float]) -> Costs:
    """Read costs from a flat list: one projection, then destinations, edges and rows by hop."""
    hops = (len(seconds) - 1) // 3
    project, by_hop = seconds[0], seconds[1:]
    destination, edge, fetch = (tuple(by_hop[i * hops : (i + 1) * hops]) for i in range(3))
    return Costs(project, destination, edge, fetch)


def _row_bytes(transfer: LayerTransfer) -> int:
    """Return the bytes of a row that travels for a layer and back, in its smallest form."""
    return min(
        layout.row_bytes for kind, layout in transfer.layouts.items() if not isinstance(kind, Sums)
    )


def _byte_seconds(cluster: Cluster) -> float:
    """Measure the seconds to receive a byte while all ranks send to all others.

    Every rank must call it.
    """
    if cluster.world == 1:
        return 0.0
    sent = torch.zeros(cluster.world * _MESSAGE_BYTES, dtype=torch.uint8, device=cluster.device)
    lengths = [_MESSAGE_BYTES] * cluster.world
    best = float("inf")
    for _ in range(_REPEATS):
        cluster.arrive("measuring what a message costs")
        start = _now(cluster.device, cluster.clock)
        cluster.start_exchange(
            sent, lengths, lengths, "control", "measuring what a message costs"
        ).finish()
        best = min(best, _now(cluster.device, cluster.clock) - start)
    return best / ((cluster.world - 1) * _MESSAGE_BYTES)


def _layer_seconds(model: GNN, index: int, width: int) -> tuple[float, float, float]:
    """Measure the seconds that a layer takes for a source, for a destination and for an edge."""
    sources = _seconds(model, index, width, destinations=1, edges=1)
    few = _seconds(model, index, width, destinations=_NODES, edges=_NODES)
    many = _seconds(model, index, width, destinations=_NODES, edges=_EDGES_A_NODE * _NODES)
    edge = max(0.0, many - few) / ((_EDGES_A_NODE - 1) * _NODES)
    destination = max(0.0, (few - sources) / _NODES - edge)
    return sources / _NODES, destination, edge


def _seconds(model: GNN, index: int, width: int, *, destinations: int, edges: int) -> float:
    """Measure the seconds of a layer's forward and backward pass, the minimum of a few."""
    parameter = next(model.parameters())
    device, dtype = parameter.device, parameter.dtype
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(_NODES, width, generator=draws).to(device, dtype).requires_grad_(index > 0)
    indices = torch.randint(_NODES, (edges,), generator=draws).to(device)
    indptr = (torch.arange(destinations + 1) * edges // destinations).to(device)
    ids = torch.arange(_NODES, device=device)
    nodes = Nodes("node", ids, ids)
    block = Block(
        _NODES,
        destinations,
        indptr,
        indices,
        Relation("node", "edge", "node"),
        torch.zeros_like(indices),
        nodes,
        nodes.first(destinations),
        edge_features=rows.new_zeros(edges, model.layer(index).edge_dim),
    )
    parameters: list[torch.Tensor] = [p for p in model.layer(index).parameters() if p.requires_grad]
    if index:
        parameters.append(rows)
    best = float("inf")
    for _ in range(_REPEATS):
        start = _now(device)
        out = model.step(index, block, rows)
        torch.autograd.grad(out.sum(), parameters, allow_unused=True)
        best = min(best, _now(device) - start)
    return best


def _now(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds on a clock after all launched kernels have finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


def choose_kept(topology: Topology, owned: Mask, costs: Costs) -> list[Mask]:
    """Choose the nodes of other ranks whose rows a rank computes itself (section 4 of the paper).

    The cost of a row is that of its edges in every layer below, plus the rows that only these edges
    read on this rank. Each of those is computed or fetched, whichever takes less. A row that
    several such nodes need is counted for each of them, so the choice errs towards fetching.

    Parameters
    ----------
    topology: in-edges of all nodes.
    owned: [nodes], whether the rank owns a node.

    Returns
    -------
    By hop, [nodes]: whether the rank computes the node's row where the hop's layer reads it.
    """
    indptr, indices = np.asarray(topology.indptr), np.asarray(topology.indices)
    degrees, hops = np.diff(indptr), len(costs.fetch)
    destinations = np.repeat(np.arange(degrees.size), degrees)
    near = owned.copy()
    near[indices[owned[destinations]]] = True
    masks: list[Mask] = []
    # Start at the deepest hop, whose sources are input rows: there a row costs its projection.
    compute = np.full(owned.size, costs.project)
    for hop in reversed(range(hops)):
        masks.insert(0, ~owned & (compute <= costs.fetch[hop]))
        cheapest = np.where(near, 0.0, np.minimum(compute, costs.fetch[hop]))
        sources = np.bincount(destinations, cheapest[indices], degrees.size)
        compute = compute + costs.destination[hop] + degrees * costs.edge[hop] + sources
    # A node that is computed for one layer is computed for all layers below it.
    for hop in range(1, hops):
        masks[hop] |= masks[hop - 1]
    return masks
