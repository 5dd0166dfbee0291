"""Hopper's servers as PyG's remote back end: ``NodeLoader((stores), node_sampler=...)``."""

from __future__ import annotations

import os
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch_geometric import data, sampler
from torch_geometric.data.feature_store import TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.sample import NeighborSampler
from hopper.pipeline.connected import ConnectedGraph
from hopper.pipeline.loader import read_features, read_labels
from hopper.pyg.data import edge_ids, edge_index_of, edge_places, edges_by_id, is_typed, node_counts
from hopper.pyg.settings import Fanouts, read_draws


class FeatureStore(data.FeatureStore):
    """Features and labels of nodes on feature servers, by original id: ``x`` and ``y``.

    It can only be read. In a worker of a data loader it connects by itself.

    Parameters
    ----------
    graph: what :func:`hopper.connect` returned.
    """

    def __init__(self, graph: ConnectedGraph) -> None:
        super().__init__()
        self._graph = graph

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return an attribute for the features and the labels of each type that has any."""
        schema = self._graph.graph.schema
        typed = is_typed(schema)
        names = [(name, "x") for name, kind in schema.node_types.items() if kind.feature_dim]
        names += [(name, "y") for name in schema.node_types if name in schema.labels]
        return [TensorAttr(name if typed else None, attribute) for name, attribute in names]

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        graph, node_type = self._graph.graph, self._type(attr)
        count = graph.schema.node_types[node_type].count
        index: Any = slice(None) if attr.index is None else attr.index
        ids = torch.arange(count)[index].numpy()
        nodes = graph.global_ids(node_type)[np.atleast_1d(ids)]
        if attr.attr_name == "y":
            return read_labels(self._graph.rows, node_type, nodes)
        return read_features(self._graph.rows, node_type, nodes)

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        schema, node_type = self._graph.graph.schema, self._type(attr)
        count = schema.node_types[node_type].count
        if attr.attr_name == "x":
            return count, schema.node_types[node_type].feature_dim or 0
        labels = schema.labels[node_type]
        return (count,) if labels.kind == "class" else (count, labels.columns)

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise RequestError("FeatureStore: rows on feature servers can only be read")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise RequestError("FeatureStore: rows on feature servers can only be read")

    def _type(self, attr: TensorAttr) -> str:
        return attr.group_name or next(iter(self._graph.graph.schema.node_types))


class GraphStore(data.GraphStore):
    """The edges of a partitioned graph, by original id, in the order of their ids.

    It can only be read. :class:`Sampler` draws without it; it is read where all edges of a type are
    asked for.

    Parameters
    ----------
    graph: what :func:`hopper.connect` returned.
    """

    def __init__(self, graph: ConnectedGraph) -> None:
        super().__init__()
        self._graph = graph

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return an attribute for each relation."""
        schema = self._graph.graph.schema
        return [
            EdgeAttr(
                tuple(relation) if is_typed(schema) else None,
                EdgeLayout.COO,
                size=(schema.count_of(relation.src), schema.count_of(relation.dst)),
            )
            for relation in schema.relations
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.layout != EdgeLayout.COO:
            return None
        graph = self._graph.graph
        name = edge_attr.edge_type
        relation = next(iter(graph.schema.relations)) if name is None else Relation(*name)
        src, dst = edges_by_id(graph, relation)
        originals = graph.original_ids(relation.src)[src], graph.original_ids(relation.dst)[dst]
        return torch.from_numpy(originals[0]), torch.from_numpy(originals[1])

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise RequestError("GraphStore: a partitioned graph can only be read")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise RequestError("GraphStore: a partitioned graph can only be read")


class Sampler(sampler.BaseSampler):
    """Draws neighbors for PyG's ``NodeLoader`` and ``LinkLoader``, by original id.

    Each call draws anew, by a number from torch's generator. So draws repeat with
    ``torch.manual_seed``, and in workers as PyG's own do. :class:`hopper.pyg.NeighborLoader` reads
    ahead in threads instead, and draws the same on any number of ranks.

    Parameters
    ----------
    graph: what :func:`hopper.connect` returned.
    num_neighbors, replace, subgraph_type, temporal_strategy, time_attr, weight_attr: as of
        :class:`hopper.pyg.NeighborLoader`.
    """

    def __init__(
        self,
        graph: ConnectedGraph,
        num_neighbors: Fanouts,
        *,
        replace: bool = False,
        subgraph_type: Any = "directional",
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
    ) -> None:
        self._graph = graph
        self._draws = read_draws(
            graph.graph.schema,
            num_neighbors,
            replace=replace,
            subgraph_type=subgraph_type,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
        )
        if time_attr is not None:
            raise RequestError("time_attr: expected None; hopper.pyg.NeighborLoader draws in time")
        self._process = os.getpid()
        self._sampler: NeighborSampler | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_sampler": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())

    def sample_from_nodes(
        self, index: NodeSamplerInput, **_: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbors of nodes."""
        return node_sample(index, self._sample)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbors of links' ends and of negatives."""
        schema = self._graph.graph.schema
        counts: Any = {name: kind.count for name, kind in schema.node_types.items()}
        if not is_typed(schema):
            (counts,) = counts.values()
        return edge_sample(index, self._sample, counts, disjoint=False, neg_sampling=neg_sampling)

    def _sample(self, seed: Any, _seed_time: Any = None) -> SamplerOutput | HeteroSamplerOutput:
        graph, schema = self._graph.graph, self._graph.graph.schema
        if self._process != os.getpid():
            _check_fork()
            self._process = os.getpid()
        if self._sampler is None:
            self._sampler = self._draws.make_sampler(self._graph, "", 0)
        if not isinstance(seed, dict):
            seed = {next(iter(schema.node_types)): seed}
        roots: dict[str, Ids] = {
            name: graph.global_ids(name)[ids.numpy()] for name, ids in seed.items()
        }
        number = int(torch.randint(1 << 31, ()))
        subgraph = self._sampler.sample_versions(roots, 0, number, once=True)
        nodes = {
            name: torch.from_numpy(graph.original_ids(name)[ids])
            for name, ids in subgraph.nodes.items()
        }
        ends, edge_counts = {}, {}
        edges: dict[tuple[str, ...], Tensor | None] = {}
        for relation in schema.relations:
            name = tuple(relation)
            ends[name], edge_counts[name] = edge_index_of(subgraph, relation)
            topology = subgraph.topologies[relation]
            # Where a server has only a part of the topology, ids of edges are not known.
            edges[name] = None
            if topology.stored is None:
                edges[name] = edge_ids(topology, edge_places(subgraph, relation))
        counts = {name: node_counts(subgraph, name) for name in nodes}
        if is_typed(schema):
            return HeteroSamplerOutput(
                node=nodes,
                row={name: both[0] for name, both in ends.items()},
                col={name: both[1] for name, both in ends.items()},
                edge=edges,
                num_sampled_nodes=counts,
                num_sampled_edges=edge_counts,
            )
        (node,), (both,), (edge,) = nodes.values(), ends.values(), edges.values()
        (of_nodes,), (of_edges,) = counts.values(), edge_counts.values()
        return SamplerOutput(
            node=node,
            row=both[0],
            col=both[1],
            edge=edge,
            num_sampled_nodes=of_nodes,
            num_sampled_edges=of_edges,
        )


def _check_fork() -> None:
    """Refuse to draw in a forked process whose parent has drawn: its threads cannot be used."""
    try:
        numba.threading_layer()
    except ValueError:
        return
    raise RequestError(
        "num_workers: this process drew neighbors before it forked workers, which cannot use "
        'its threads; expected multiprocessing_context="spawn", or hopper.pyg.NeighborLoader'
    )
