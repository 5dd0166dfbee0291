"""``LinkNeighborLoader``: PyG's loader of links with the sampled neighbors of their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NegativeSampling

from cache_server.draws.counter import NEGATIVES, absorb_each, key_of
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.temporal_sampler import TemporalSampler
from hopper.partition import PartitionedGraph
from hopper.partition.placement import Placement as RankPlacement
from hopper.pipeline.connected import Placement
from hopper.pipeline.loader import Connectable, Drawn, connected, pipeline_config
from hopper.pipeline.pipeline import Moment
from hopper.pyg.data import edges_by_id, is_typed, to_data
from hopper.pyg.settings import Fanouts, SampledLoader, check_others, find_input, read_draws
from hopper.tasks.negatives import draw_below


@dataclass(frozen=True)
class Links:
    """Links as roots of a schedule, by their place in ``edge_label_index``.

    Attributes
    ----------
    relation: of all of them.
    src, dst: [n] int64 global ids of the ends.
    placement: tells home ranks; a link's is that of its destination.
    """

    relation: Relation
    src: Ids
    dst: Ids
    placement: RankPlacement

    @property
    def count(self) -> int:
        """The number of links."""
        return int(self.src.size)

    def at(self, places: Ids) -> Ids:
        """Return the links at some places, which are the places."""
        return places

    def home_ranks(self, roots: Ids) -> Ids:
        """Return [m] int64: the home rank of each link."""
        return self.placement.rank_of(self.relation.dst, self.dst[roots])


@dataclass(frozen=True)
class DrawnLinks(Drawn):
    """A rank's links, with the rows of their ends and of their negatives' in the subgraph.

    Attributes
    ----------
    places: [n] int64 of the links in ``edge_label_index``.
    ends: rows of the sources and destinations, by name of the end: [n], or [n, amount].
    """

    places: Ids
    ends: Mapping[str, Ids]


class LinkNeighborLoader(SampledLoader):
    """Batches of links with the sampled neighbors of their ends, as
    ``torch_geometric.loader.LinkNeighborLoader`` makes them, of a graph on feature servers.

    Batches are those of :class:`hopper.pyg.NeighborLoader`, with ``edge_label_index`` and
    ``edge_label``, or ``src_index``, ``dst_pos_index`` and ``dst_neg_index`` for triplets, and
    ``input_id``. ``loss_scale`` is for the sum of the losses over all of ``edge_label``, or over
    the links where there is none. Edges of the graph that equal a link are drawn as any others.

    Parameters
    ----------
    edge_label_index: [2, n] original ids of the links' ends, or an edge type and these. None, or an
        edge type and None = all edges.
    edge_label: [n] labels of the links.
    edge_label_time: [n] times of the links.
    neg_sampling: as in PyG, with whole numbers of negatives and without weights of nodes. They are
        drawn uniformly for each link, the same on any number of ranks.
    others: all other parameters are those of :class:`hopper.pyg.NeighborLoader`.

    Raises
    ------
    ConfigError, RequestError, GraphError: names what is wrong, before anything is read.
    """

    def __init__(
        self,
        data: Connectable,
        num_neighbors: Fanouts,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
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
        if (edge_label_time is None) != (time_attr is None):
            raise RequestError("edge_label_time: expected it and time_attr, or neither")
        pins, config = check_others(others), pipeline_config(pipeline or {})
        with connected(data) as graph:
            draws = read_draws(
                graph.graph.schema,
                num_neighbors,
                replace=replace,
                subgraph_type=subgraph_type,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
            )
            links = _read_links(graph.graph, edge_label_index, graph.placement())
            self._roots = LinkRoots(links, edge_label, edge_label_time, neg_sampling, seed)
            self._sampler = draws.make_sampler(graph, links.relation.dst, seed)
            if isinstance(self._sampler, TemporalSampler) and edge_label_time is not None:
                self._sampler.set_times({}, [edge_label_time.numpy()])
            self._schedule = graph.schedule(
                batch_size,
                roots=links,
                seed=seed,
                drop_last=drop_last,
                shuffle=shuffle,
                placement=placement,
            )
            super().__init__(
                graph,
                self._draw_links,
                self._read_batch,
                self._schedule.iterations,
                config,
                closes=graph is not data,
            )
        self.transform, self.pins, self.draws = transform, pins, draws
        self.asked = f"num_neighbors={num_neighbors}, placement={placement!r}"
        self._placement = placement

    def _draw_links(self, moment: Moment, alone: bool) -> DrawnLinks:
        batch = self._schedule.batch(*moment)
        places = batch.roots if alone else self.graph.own_roots(batch, self._placement)
        roots, ends = self._roots.find(self.graph.graph, self._sampler, places, moment)
        subgraph = self._sampler.sample_versions(roots, *moment, once=True)
        world = 1 if alone else self.graph.world
        return DrawnLinks(subgraph, batch, world, places, ends)

    def _read_batch(self, drawn: Drawn, rows: PartitionedRows) -> Any:
        assert isinstance(drawn, DrawnLinks)
        batch: Any = to_data(drawn.subgraph, rows)
        self._roots.add_to(batch, drawn)
        return self.finish(batch)


class LinkRoots:
    """The ends of links and of their negatives as roots, and what a batch says of them.

    Parameters
    ----------
    labels, times: [n], of each link.
    neg_sampling: as of :class:`LinkNeighborLoader`.
    seed: of the negatives.
    """

    def __init__(
        self,
        links: Links,
        labels: Tensor | None,
        times: Tensor | None,
        neg_sampling: Any,
        seed: int,
    ) -> None:
        for name, given in (("edge_label", labels), ("edge_label_time", times)):
            if given is not None and given.shape[:1] != (links.count,):
                raise RequestError(
                    f"{name}: expected {links.count}, one of each link, given {list(given.shape)}"
                )
        negatives = None if neg_sampling is None else NegativeSampling.cast(neg_sampling)
        if negatives is not None and labels is not None:
            if negatives.is_triplet():
                raise RequestError("edge_label: triplets have none; expected None")
            if labels.numel() and labels.min() == 0:
                # As in PyG, 0 then says that there is no link.
                labels = labels + 1
        self._links, self._labels, self._seed = links, labels, seed
        self._times = None if times is None else times.numpy()
        self._mode = "" if negatives is None else negatives.mode.value
        self._amount = 0 if negatives is None else _whole_amount(negatives)

    def find(
        self, graph: PartitionedGraph, sampler: NeighborSampler, places: Ids, moment: Moment
    ) -> tuple[dict[str, Ids], dict[str, Ids]]:
        """Return the distinct roots by node type, and each end's rows among them."""
        links, amount = self._links, self._amount
        nodes = {"src": links.src[places], "dst": links.dst[places]}
        types = {"src": links.relation.src, "dst": links.relation.dst}
        replaced = {"": (), "triplet": ("dst",), "binary": ("src", "dst")}[self._mode]
        for end in replaced:
            key = key_of(NEGATIVES, self._seed, *moment, ("src", "dst").index(end))
            globals_ = graph.global_ids(types[end])
            drawn = draw_below(absorb_each(np.uint64(key), places), amount, globals_.size)
            nodes[f"{end}_neg"], types[f"{end}_neg"] = globals_[drawn], types[end]
        versions = {}
        for end, ids in nodes.items():
            times = None
            if self._times is not None:
                repeats = amount if end.endswith("_neg") else 1
                times = np.repeat(self._times[places], repeats)
            versions[end] = sampler.versions_at(types[end], ids.ravel(), times)
        roots, rows = {}, {}
        for node_type in dict.fromkeys(types.values()):
            ends = [end for end in nodes if types[end] == node_type]
            all_of_type = np.concatenate([versions[end] for end in ends])
            roots[node_type], indices = np.unique(all_of_type, return_inverse=True)
            stops = np.cumsum([versions[end].size for end in ends])[:-1]
            for end, of_end in zip(ends, np.split(indices, stops), strict=True):
                rows[end] = of_end.reshape(nodes[end].shape)
        return roots, rows

    def add_to(self, batch: Any, drawn: DrawnLinks) -> None:
        """Add the links and their negatives to a batch, in PyG's names."""
        relation, typed = self._links.relation, isinstance(batch, HeteroData)
        store = batch[tuple(relation)] if typed else batch
        ends = {end: torch.from_numpy(rows) for end, rows in drawn.ends.items()}
        places = torch.from_numpy(drawn.places)
        labels = None if self._labels is None else self._labels[places]
        store.input_id, batch.loss_scale = places, drawn.loss_scale
        if self._times is not None:
            store.edge_label_time = torch.from_numpy(self._times[drawn.places])
        if self._mode == "triplet":
            src, dst = (batch[relation.src], batch[relation.dst]) if typed else (batch, batch)
            src.src_index, dst.dst_pos_index = ends["src"], ends["dst"]
            negatives = ends["dst_neg"]
            dst.dst_neg_index = negatives[:, 0] if self._amount == 1 else negatives
            return
        index = torch.stack([ends["src"], ends["dst"]])
        if self._mode == "binary":
            negative = torch.stack([ends["src_neg"].flatten(), ends["dst_neg"].flatten()])
            index = torch.cat([index, negative], 1)
            labels = torch.ones(len(places)) if labels is None else labels
            labels = torch.cat([labels, labels.new_zeros(negative.shape[1])])
            batch.loss_scale /= 1 + self._amount
        store.edge_label_index = index
        if labels is not None:
            store.edge_label = labels


def _whole_amount(negatives: NegativeSampling) -> int:
    """Return the number of negatives of a link."""
    amount = float(negatives.amount)
    if amount != int(amount) or amount < 1:
        raise RequestError(
            f"neg_sampling: expected a whole number of negatives a link, given {negatives.amount}"
        )
    if negatives.src_weight is not None or negatives.dst_weight is not None:
        raise RequestError("neg_sampling: expected no weights of nodes; negatives are uniform")
    return int(amount)


def _read_links(graph: PartitionedGraph, given: Any, placement: RankPlacement) -> Links:
    """Return the links that ``edge_label_index`` names."""
    schema = graph.schema
    name, index = find_input(schema, given, "edge_label_index") if given is not None else ("", None)
    if not name and is_typed(schema):
        raise RequestError("edge_label_index: expected an edge type, and ids of its ends or None")
    relation = Relation(*name) if name else next(iter(schema.relations))
    if relation not in schema.relations:
        known = ", ".join(map(str, schema.ordered_relations()))
        raise RequestError(f"edge_label_index: expected an edge type of {known}, given {relation}")
    if index is None:
        return Links(relation, *edges_by_id(graph, relation), placement)
    ends = torch.as_tensor(index)
    if ends.ndim != 2 or ends.shape[0] != 2 or ends.is_floating_point():
        raise RequestError(
            f"edge_label_index: expected [2, n] ids, given {ends.dtype} of shape {list(ends.shape)}"
        )
    both: list[NDArray[np.int64]] = []
    for node_type, ids in zip((relation.src, relation.dst), ends.numpy(), strict=True):
        count = schema.node_types[node_type].count
        if ids.size and not 0 <= ids.min() <= ids.max() < count:
            raise RequestError(
                f"edge_label_index: expected ids of {node_type!r} in [0, {count}), given "
                f"{ids.min()} to {ids.max()}"
            )
        both.append(graph.global_ids(node_type)[ids])
    return Links(relation, both[0], both[1], placement)
