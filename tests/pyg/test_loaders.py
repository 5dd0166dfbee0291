"""Batches of the loaders: what they hold, and that it follows from the roots alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Embedding, Linear
from torch.nn.functional import cross_entropy

import hopper
from hopper.errors import HopperError
from hopper.graph import GraphDirectory

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HGTConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from hopper.pyg import LinkNeighborLoader, NeighborLoader

CITES = ("paper", "to", "paper")
INPUT = ("paper", "train")


@pytest.fixture
def typed_graph(graph_of) -> Any:
    return graph_of("bare")


@pytest.fixture
def typed(parts_of) -> Any:
    return parts_of("bare")


@pytest.fixture
def drawn(parts_of) -> Any:
    """Papers with times, and relations with times and weights."""
    return parts_of("drawn")


def edges_of(graph: GraphDirectory, relation: tuple[str, str, str]) -> Tensor:
    """All edges of a relation by id: [2, edges]."""
    topology = graph.topology(hopper.Relation(*relation))
    edges = torch.empty(2, topology.indices.size, dtype=torch.int64)
    ends = np.stack([topology.indices, topology.list_destinations()])
    edges[:, torch.from_numpy(np.asarray(topology.edge_ids, np.int64))] = torch.from_numpy(ends)
    return edges


def check_batch(
    batch: HeteroData, graph: GraphDirectory, fanouts: dict[tuple[str, str, str], list[int]]
) -> None:
    """Compare a batch with the graph, by what PyG's documentation says of batches."""
    batch.validate()
    schema = graph.schema
    assert batch.node_types == list(schema.node_types)
    assert batch.edge_types == [tuple(relation) for relation in schema.relations]
    bounds = {}
    for name, kind in schema.node_types.items():
        store = batch[name]
        assert store.n_id.unique().numel() == store.n_id.numel() == sum(store.num_sampled_nodes)
        bounds[name] = np.cumsum([0, *store.num_sampled_nodes])
        if kind.feature_dim:
            features = graph.features(name)
            assert features is not None
            assert torch.equal(store.x, torch.from_numpy(np.array(features))[store.n_id])
    for edge_type in batch.edge_types:
        store, whole = batch[edge_type], edges_of(graph, edge_type)
        source, _, target = edge_type
        ends = torch.stack(
            [batch[source].n_id[store.edge_index[0]], batch[target].n_id[store.edge_index[1]]]
        )
        assert torch.equal(ends, whole[:, store.e_id])
        assert store.e_id.unique().numel() == store.e_id.numel() == sum(store.num_sampled_edges)
        degrees = torch.bincount(whole[1], minlength=schema.node_types[target].count)
        first = 0
        for hop, count in enumerate(store.num_sampled_edges):
            # Every node that the hop before has found is expanded, and no other.
            new = slice(bounds[target][hop], bounds[target][hop + 1])
            drawn = torch.bincount(
                store.edge_index[1, first : first + count], minlength=bounds[target][-1]
            )
            fanout, of_new = fanouts[edge_type][hop], degrees[batch[target].n_id[new]]
            expected = of_new if fanout < 0 else of_new.clamp(max=fanout)
            assert torch.equal(drawn[new], expected)
            assert drawn.sum() == expected.sum()
            first += count


@pytest.mark.parametrize("fanouts", [[3, 3], [4, 2], [-1, -1], "by relation"])
def test_typed_batches_are_what_pyg_says_of_its_own(fanouts, typed, typed_graph):
    relations = [tuple(relation) for relation in typed_graph.schema.relations]
    if fanouts == "by relation":
        fanouts = {name: [2, 2] if name == CITES else [1, 0] for name in relations}
    by_relation = fanouts if isinstance(fanouts, dict) else dict.fromkeys(relations, fanouts)
    labels = typed_graph.labels("paper")
    train = torch.from_numpy(np.array(typed_graph.split("train")))
    seen = []
    with NeighborLoader(typed, fanouts, INPUT, batch_size=8, shuffle=True, seed=4) as loader:
        assert len(loader) == 7
        for batch in loader:
            check_batch(batch, typed_graph, by_relation)
            paper = batch["paper"]
            roots = paper.n_id[: paper.batch_size]
            assert torch.equal(train[paper.input_id], roots)
            assert torch.equal(paper.y, torch.from_numpy(np.array(labels))[roots])
            assert batch.loss_scale == 1 / paper.batch_size
            seen.append(roots)
    assert torch.equal(torch.cat(seen).sort().values, train)
    assert "approximate" not in repr(NeighborLoader(typed, [3, 3], INPUT))
    assert "approximate" in repr(NeighborLoader(typed, [4, 2], INPUT))


@pytest.mark.parametrize("placement", ["home", "random", "local"])
def test_ranks_share_the_global_batches_of_one(placement, parts):
    """With equal fanouts each root's neighborhood is the one that it has on any rank."""

    def epoch(rank: int, world: int) -> list[Data]:
        with hopper.connect(parts, rank=rank, world=world) as graph:
            size = 12 // world
            options: dict[str, Any] = {"batch_size": size, "shuffle": True, "placement": placement}
            with NeighborLoader(graph, [3, 3], "train", seed=2, **options) as loader:
                next(iter(loader))
                return list(loader)

    alone, ranks = epoch(0, 1), [epoch(rank, 2) for rank in range(2)]
    roots_alone, roots_of_ranks = [], []
    for whole, *pieces in zip(alone, *ranks, strict=True):
        pieces_roots = torch.cat([piece.n_id[: piece.batch_size] for piece in pieces])
        roots_alone += whole.n_id[: whole.batch_size].tolist()
        roots_of_ranks += pieces_roots.tolist()
        assert [piece.loss_scale for piece in pieces] == [2 / pieces_roots.numel()] * 2
        if placement != "local":
            expected = whole.n_id[: whole.batch_size].sort().values
            assert torch.equal(pieces_roots.sort().values, expected)
            drawn = torch.cat([piece.e_id for piece in pieces]).unique()
            assert torch.equal(drawn, whole.e_id.unique())
    assert sorted(roots_of_ranks) == sorted(roots_alone)
    with hopper.connect(parts, rank=1, world=2) as graph:
        own = graph.rows.is_local("item", graph.graph.global_ids("item"))
    if placement == "home":
        assert all(own[batch.n_id[: batch.batch_size]].all() for batch in ranks[1])


def test_nodes_come_in_their_order_without_shuffling(parts):
    ids = torch.tensor([7, 3, 250, 11, 5])
    with NeighborLoader(parts, [2], ids, batch_size=2) as loader:
        batches = list(loader)
    assert [batch.n_id[: batch.batch_size].tolist() for batch in batches] == [
        [7, 3],
        [250, 11],
        [5],
    ]
    assert [batch.input_id.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    mask = torch.zeros(300, dtype=torch.bool)
    mask[ids] = True
    with NeighborLoader(parts, [2], mask, batch_size=2, drop_last=True) as loader:
        assert [batch.n_id[:2].tolist() for batch in loader] == [[3, 5], [7, 11]]
    assert len(NeighborLoader(parts, [2], batch_size=100)) == 3


def test_a_loader_goes_on_in_the_midst_of_an_epoch(parts):
    def make() -> NeighborLoader:
        pipeline = {"lookahead": 3}
        return NeighborLoader(
            parts, [3, 3], "train", batch_size=9, shuffle=True, pipeline=pipeline, num_workers=2
        )

    with make() as loader:
        epochs = [[batch.e_id.tolist() for batch in loader] for _ in range(3)]
    assert epochs[0] != epochs[1]
    with make() as loader:
        for number, _batch in enumerate(loader):
            if number == 3:
                break
        state = loader.state_dict()
        # A loop that was left is not gone on with.
        assert [batch.e_id.tolist() for batch in loader] == epochs[1]
    with make() as loader:
        loader.load_state_dict(state)
        assert [batch.e_id.tolist() for batch in loader] == epochs[0][4:]
        assert [batch.e_id.tolist() for batch in loader] == epochs[1]
        with pytest.raises(hopper.RequestError, match="epochs of 10 iterations"):
            loader.load_state_dict({"epoch": 1})


def test_weights_times_and_replacement(drawn):
    graph = hopper.PartitionedGraph.open(drawn)
    times = torch.from_numpy(np.array(graph.times("paper")))
    for strategy in ("uniform", "last"):
        with NeighborLoader(
            drawn, [3, 3], INPUT, temporal_strategy=strategy, time_attr="time", batch_size=10
        ) as loader:
            for batch in loader:
                paper = batch["paper"]
                assert torch.equal(paper.seed_time, times[paper.n_id[: paper.batch_size]])
                # What a root cites was there at the root's time.
                ends = batch[CITES].edge_index
                seeds = ends[1] < paper.batch_size
                cited = times[paper.n_id[ends[0, seeds]]]
                assert (cited <= paper.seed_time[ends[1, seeds]]).all()
    early = torch.full((50,), int(times.min()) - 1)
    with NeighborLoader(
        drawn, [3], INPUT, input_time=early, time_attr="time", batch_size=50
    ) as loader:
        assert next(iter(loader))[CITES].edge_index.shape == (2, 0)
    sizes = {}
    for replace in (False, True):
        with NeighborLoader(
            drawn, [5, 5], INPUT, weight_attr="weight", replace=replace, batch_size=50
        ) as loader:
            sizes[replace] = next(iter(loader))[CITES].e_id
    assert sizes[False].unique().numel() == sizes[False].numel()
    assert sizes[True].unique().numel() < sizes[True].numel()


def test_partitioned_topology_draws_on_servers(parts, parts_of, serve_partitions):
    divided = parts_of("items", "partitioned")
    with hopper.connect(divided, serve_partitions(divided, 2)) as graph:
        elsewhere = list(NeighborLoader(graph, [3, 3], "train", batch_size=9))
    here = list(NeighborLoader(parts, [3, 3], "train", batch_size=9))
    for one, other in zip(elsewhere, here, strict=True):
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.x, other.x)
        assert "e_id" not in one


class TrimmedSage(torch.nn.Module):
    """Two layers, which may compute less and less as hops are nearer to the roots."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([SAGEConv(10, 8), SAGEConv(8, 6)])

    def forward(self, batch: Data, *, trims: bool) -> Tensor:
        x, edges = batch.x, batch.edge_index
        for number, layer in enumerate(self.layers):
            if trims:
                x, edges, _ = trim_to_layer(
                    number, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges
                )
            x = layer(x, edges)
        return x[: batch.batch_size]


def test_all_neighbors_give_what_the_whole_graph_gives(community_graph, parts):
    torch.manual_seed(1)
    model = TrimmedSage()
    features = community_graph.features("item")
    assert features is not None
    whole = Data(
        torch.from_numpy(np.array(features)),
        edges_of(community_graph, ("item", "near", "item")),
        batch_size=300,
    )
    expected = model(whole, trims=False)
    with NeighborLoader(parts, [-1, -1], batch_size=64, shuffle=True) as loader:
        for batch in loader:
            for trims in (False, True):
                out = model(batch, trims=trims)
                roots = batch.n_id[: batch.batch_size]
                assert torch.allclose(out, expected[roots], atol=1e-5)


class Hgt(torch.nn.Module):
    """Two layers of PyG's HGTConv on rows that are learned where a type has none."""

    def __init__(self, parts: hopper.PartitionedGraph) -> None:
        super().__init__()
        schema = parts.schema
        self.inputs = torch.nn.ModuleDict(
            {
                name: Linear(kind.feature_dim, 8) if kind.feature_dim else Embedding(kind.count, 8)
                for name, kind in schema.node_types.items()
            }
        )
        metadata = list(schema.node_types), [tuple(relation) for relation in schema.relations]
        self.layers = torch.nn.ModuleList([HGTConv(8, 8, metadata, heads=2) for _ in range(2)])
        self.head = Linear(8, 4)

    def forward(self, batch: HeteroData) -> Tensor:
        rows = {
            name: layer(batch[name].n_id if isinstance(layer, Embedding) else batch[name].x)
            for name, layer in self.inputs.items()
        }
        for layer in self.layers:
            new = layer(rows, batch.edge_index_dict)
            rows |= {name: x for name, x in new.items() if x is not None}
        return self.head(rows["paper"][: batch["paper"].batch_size])


def test_models_of_pyg_are_trained(typed):
    torch.manual_seed(3)
    model = Hgt(hopper.PartitionedGraph.open(typed))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with NeighborLoader(typed, [3, 3], INPUT, batch_size=10, shuffle=True) as loader:
        losses = []
        for _ in range(12):
            total = 0.0
            for batch in loader:
                loss = cross_entropy(model(batch), batch["paper"].y, reduction="sum")
                optimizer.zero_grad()
                (loss * batch.loss_scale).backward()
                optimizer.step()
                total += float(loss.detach())
            losses.append(total)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("mode", ["none", "labels", "binary", "triplet", "in time"])
def test_links_come_with_negatives_and_labels(mode, typed, typed_graph, drawn):
    edges = edges_of(typed_graph, CITES)
    options: dict[str, Any] = {}
    if mode in ("binary", "triplet"):
        options["neg_sampling"] = {"mode": mode, "amount": 2}
    if mode == "labels":
        options |= {"edge_label": torch.arange(400) % 7, "neg_sampling": "binary"}
    if mode == "in time":
        options |= {"edge_label_time": torch.arange(400) % 90, "time_attr": "time"}
    seen = []
    parts = drawn if mode == "in time" else typed
    with LinkNeighborLoader(
        parts, [2, 2], (CITES, edges), batch_size=60, shuffle=True, **options
    ) as loader:
        for batch in loader:
            batch.validate()
            store, paper = batch[CITES], batch["paper"]
            links = edges[:, store.input_id]
            seen.append(store.input_id)
            count = store.input_id.numel()
            if mode == "triplet":
                assert torch.equal(paper.n_id[paper.src_index], links[0])
                assert torch.equal(paper.n_id[paper.dst_pos_index], links[1])
                assert paper.dst_neg_index.shape == (count, 2)
                assert batch.loss_scale == 1 / count
                continue
            ends = paper.n_id[store.edge_label_index]
            assert torch.equal(ends[:, :count], links)
            if mode == "in time":
                assert torch.equal(store.edge_label_time, store.input_id % 90)
            elif mode == "labels":
                assert torch.equal(store.edge_label[:count], 1 + store.input_id % 7)
                assert not store.edge_label[count:].any()
            elif mode == "binary":
                assert store.edge_label.tolist() == [1.0] * count + [0.0] * 2 * count
                assert batch.loss_scale == pytest.approx(1 / (3 * count))
            else:
                assert "edge_label" not in store
    assert torch.cat(seen).sort().values.tolist() == list(range(400))


def test_negatives_do_not_depend_on_ranks(parts):
    def triplets(rank: int, world: int) -> list[set[tuple[int, ...]]]:
        with hopper.connect(parts, rank=rank, world=world) as graph:
            loader = LinkNeighborLoader(
                graph, [2], batch_size=200 // world, neg_sampling="triplet", shuffle=True
            )
            return [
                set(
                    zip(
                        batch.input_id.tolist(),
                        *(
                            batch.n_id[batch[name]].tolist()
                            for name in ("src_index", "dst_pos_index", "dst_neg_index")
                        ),
                        strict=True,
                    )
                )
                for batch in loader
            ]

    alone = triplets(0, 1)
    assert len(set.union(*alone)) == edges_count(parts)
    for whole, *pieces in zip(alone, triplets(0, 2), triplets(1, 2), strict=True):
        assert set.union(*pieces) == whole


def edges_count(parts: Path) -> int:
    return sum(k.count for k in hopper.PartitionedGraph.open(parts).schema.relations.values())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([2, 2], ("papers", "train")), "input_nodes: expected a type of .*paper"),
        (([2, 2], "papers"), "papers"),
        (([2, 2],), "input_nodes: expected a type and its ids"),
        (([2, 2], ("author", "train")), "split 'train' has nodes of 'paper'"),
        (([2, 2], ("paper", torch.tensor([1, 1]))), "distinct ids of 'paper'"),
        (([2, 2], ("paper", torch.ones(3, dtype=torch.bool))), "a mask of 120 nodes"),
        (([2, 2], ("paper", torch.ones(3))), r"expected \[n\] ids, given torch.float32"),
        (({CITES: [2]}, INPUT), "num_neighbors: expected .*, given paper/to/paper"),
        (([], INPUT), "num_neighbors: expected equally many hops"),
        (([-2], INPUT), "num_neighbors: of .*-1"),
    ],
)
def test_senseless_inputs_are_refused(arguments, text, typed):
    with pytest.raises(HopperError, match=text):
        NeighborLoader(typed, *arguments)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subgraph_type": "induced"}, "subgraph_type: .*'induced'"),
        ({"disjoint": True}, "disjoint"),
        ({"temporal_strategy": "first"}, "temporal_strategy: .*'first'"),
        ({"time_attr": "time", "replace": True}, "time_attr: .*replace=False"),
        ({"time_attr": "time"}, "no times"),
        ({"weight_attr": "weight"}, "weight_attr: .*no weights"),
        ({"input_time": torch.ones(50)}, "input_time: expected time_attr"),
        ({"neighbor_sampler": 1}, "neighbor_sampler: this loader has no such argument"),
        ({"placement": "nearest"}, "placement: expected home, random, local"),
        ({"batch_size": 0}, "batch_size: expected at least 1"),
        ({"pipeline": {"dept": 1}}, "pipeline.dept"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options, text, typed):
    with pytest.raises(HopperError, match=text):
        NeighborLoader(typed, [2, 2], INPUT, **options)


@pytest.mark.parametrize(
    ("index", "options", "text"),
    [
        (None, {}, "edge_label_index: expected an edge type"),
        ((("a", "b", "c"), None), {}, "edge_label_index: expected an edge type of"),
        ((CITES, torch.ones(3, 2)), {}, r"expected \[2, n\] ids"),
        ((CITES, torch.full((2, 3), 500)), {}, "ids of 'paper' in"),
        ((CITES, None), {"edge_label": torch.ones(3)}, "edge_label: expected 400"),
        ((CITES, None), {"neg_sampling": {"mode": "binary", "amount": 0.5}}, "whole number"),
        ((CITES, None), {"time_attr": "time"}, "edge_label_time"),
    ],
)
def test_senseless_links_are_refused(index, options, text, typed):
    with pytest.raises(HopperError, match=text):
        LinkNeighborLoader(typed, [2, 2], index, **options)


def test_blocks_as_dgl_are_the_blocks(typed, typed_graph):
    dgl = pytest.importorskip("dgl")
    with hopper.loader(typed, [3, 2], batch_size=8, seed=1) as loader:
        batch = next(iter(loader))
    assert batch.loss_scale == 1 / batch.global_size == 1 / 8
    for graph, hop in zip(batch.as_dgl(), batch.typed_blocks(), strict=True):
        for relation, block in hop.blocks.items():
            src, dst = graph.edges(etype=tuple(relation))
            assert torch.equal(src, block.indices)
            assert torch.equal(dst, block.destinations())
        for name, nodes in hop.nodes.items():
            assert torch.equal(graph.srcnodes[name].data[dgl.NID], torch.as_tensor(nodes.original))
    roots = graph.dstnodes["paper"].data[dgl.NID]
    assert torch.equal(roots, torch.from_numpy(batch.roots))
    labels = typed_graph.labels("paper")
    assert batch.labels is not None
    assert np.array_equal(batch.labels, np.array(labels)[batch.roots])
