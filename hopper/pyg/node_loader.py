"""``NeighborLoader``: PyG's loader of nodes with their sampled neighbors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph.schema import GraphSchema
from hopper.graph.topology import Ids
from hopper.micrograph.temporal_sampler import TemporalSampler
from hopper.partition import PartitionedGraph
from hopper.pipeline.connected import Placement
from hopper.pipeline.loader import (
    Connectable,
    Drawn,
    connected,
    draw_with,
    pipeline_config,
    read_labels,
)
from hopper.pyg.data import is_typed, to_data
from hopper.pyg.settings import Fanouts, SampledLoader, check_others, find_input, read_draws


class NeighborLoader(SampledLoader):
    """Batches of nodes with their sampled neighbors, as ``torch_geometric.loader.NeighborLoader``
    makes them, of a graph that lies on feature servers.

    Batches have ``x``, ``edge_index``, ``edge_attr``, ``n_id``, ``e_id`` (original ids),
    ``input_id``, ``batch_size``, ``num_sampled_nodes`` and ``num_sampled_edges``. ``y`` has the
    labels of the batch's input nodes only, which come first. They also have ``loss_scale``:
    multiply the *sum* of the losses by it, and the gradients that DistributedDataParallel averages
    are those of the global batch, though ranks have different numbers of input nodes, or none.

    With equal ``num_neighbors`` at all hops, what is drawn for a node does not depend on the other
    nodes of its batch. With others it does, as in PyG, and ``repr`` says "approximate".

    Parameters
    ----------
    data: a partitioned directory, the addresses of all servers, or what :func:`hopper.connect`
        returned.
    num_neighbors: by hop, also by edge type; -1 = all.
    input_nodes: ids or a mask of nodes, a split's name, or a node type; or a node type and one of
        the first two. None = all nodes.
    input_time: [n] times of the input nodes, in place of their own.
    replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr, transform: as in
        PyG. The graph has one time and one weight, so their names do not matter. Only
        ``subgraph_type="directional"`` is possible, and roots of the same time share nodes.
    batch_size: input nodes of a rank in the mean. A global batch has as many for each rank.
    shuffle, drop_last: as in PyG.
    placement: which nodes of a global batch a rank trains; see :func:`hopper.loader`.
    seed: of the order of nodes and of the draws, the same on all ranks.
    pipeline: keys of ``[pipeline]``, such as ``{"lookahead": 5}``. Batches are read ahead in
        threads, so there are no workers, and ``num_workers`` has no effect.
    others: further arguments of PyG's loader. Of these ``pin_memory`` has an effect.

    Raises
    ------
    ConfigError, RequestError, GraphError: names what is wrong, before anything is read.
    """

    def __init__(
        self,
        data: Connectable,
        num_neighbors: Fanouts,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        placement: Placement = "home",
        seed: int = 0,
        pipeline: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        if input_time is not None and time_attr is None:
            raise RequestError("input_time: expected time_attr beside it")
        pins, config = check_others(others), pipeline_config(pipeline or {})
        with connected(data) as graph:
            schema = graph.graph.schema
            draws = read_draws(
                schema,
                num_neighbors,
                replace=replace,
                subgraph_type=subgraph_type,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
            )
            node_type, split, ids = _read_input(graph.graph, input_nodes)
            sampler = draws.make_sampler(graph, node_type, seed)
            if input_time is not None and isinstance(sampler, TemporalSampler):
                sampler.set_times({node_type: _times_of(schema, node_type, ids, input_time)})
            schedule = graph.schedule(
                batch_size,
                roots=split or ids,
                node_type=node_type,
                seed=seed,
                drop_last=drop_last,
                shuffle=shuffle,
                placement=placement,
            )
            super().__init__(
                graph,
                draw_with(graph, sampler, schedule, placement, once=True),
                self._read_batch,
                schedule.iterations,
                config,
                closes=graph is not data,
            )
        self.transform, self.pins, self.draws = transform, pins, draws
        self.asked = f"num_neighbors={num_neighbors}, placement={placement!r}"
        # Where each original id is among the input nodes.
        self._order = np.argsort(ids, kind="stable")
        self._ascending = ids[self._order]

    def _read_batch(self, drawn: Drawn, rows: PartitionedRows) -> Any:
        subgraph = drawn.subgraph
        batch = to_data(subgraph, rows)
        store = batch[subgraph.target] if isinstance(batch, HeteroData) else batch
        roots = rows.graph.original_ids(subgraph.target)[subgraph.roots]
        store.input_id = torch.from_numpy(self._order[np.searchsorted(self._ascending, roots)])
        store.batch_size = roots.size
        labels = read_labels(rows, subgraph.target, subgraph.roots)
        if labels is not None:
            store.y = labels
        if subgraph.times:
            store.seed_time = torch.from_numpy(subgraph.times[subgraph.target][: roots.size])
        batch.loss_scale = drawn.loss_scale
        return self.finish(batch)


def _read_input(graph: PartitionedGraph, given: Any) -> tuple[str, str, Ids]:
    """Return the type of the input nodes, the split that they are or "", and their original ids."""
    schema = graph.schema
    if given is None and not is_typed(schema):
        given = next(iter(schema.node_types))
    name, ids = find_input(schema, given, "input_nodes")
    node_type = name or (
        schema.target_type() if isinstance(ids, str) else next(iter(schema.node_types))
    )
    if node_type not in schema.node_types:
        raise RequestError(
            f"input_nodes: expected a type of {', '.join(schema.node_types)}, given {node_type!r}"
        )
    if isinstance(ids, str):
        return node_type, ids, graph.split(ids)
    count = schema.node_types[node_type].count
    if ids is None:
        return node_type, "", np.arange(count)
    nodes = torch.as_tensor(ids)
    if nodes.dtype == torch.bool:
        if nodes.shape != (count,):
            raise RequestError(
                f"input_nodes: expected a mask of {count} nodes of {node_type!r}, given "
                f"{list(nodes.shape)}"
            )
        nodes = nodes.nonzero()[:, 0]
    if nodes.is_floating_point() or nodes.ndim != 1:
        raise RequestError(
            f"input_nodes: expected [n] ids, given {nodes.dtype} of shape {list(nodes.shape)}"
        )
    return node_type, "", nodes.numpy().astype(np.int64)


def _times_of(schema: GraphSchema, node_type: str, ids: Ids, given: Tensor) -> Ids:
    """Return [count] int64: a time for each node of a type, the given ones for the input nodes."""
    if given.shape != ids.shape:
        raise RequestError(
            f"input_time: expected {ids.size} times, one of each input node, given "
            f"{list(given.shape)}"
        )
    times = np.zeros(schema.node_types[node_type].count, np.int64)
    times[ids] = given.numpy()
    return times
