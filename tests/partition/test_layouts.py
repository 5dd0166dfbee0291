"""What every layout promises: the same graph under other names, which map back to the original ids.

Graphs of nodes that are divided are also described: edge cut and balance.
"""

import re
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from cache_server.store.shard import Shard
from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.hetero.divide import divide_graph
from hopper.micrograph import frontiers
from hopper.micrograph.frontiers import DenseTable, HashTable
from hopper.micrograph.sample import NeighborSampler
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.checksums import check_partition, check_rows, check_structure
from hopper.partition.layout import DividedTopology
from hopper.partition.partitioned_graph import LAYOUTS

KINDS: Final[dict[str, dict[str, Any]]] = {
    "replicated": {"method": "random"},
    "partitioned": {"method": "stream", "topology": "partitioned"},
    "by_dimension": {"method": "random", "features": "by-dimension"},
    "by_relation": {"method": "meta"},
}
SERVERS: Final = range(3)


@pytest.fixture(scope="module", params=KINDS)
def divided(request, shared_library, tmp_path_factory) -> PartitionedGraph:
    """The library over three servers."""
    out = tmp_path_factory.mktemp("divided") / request.param
    graph = divide_graph(shared_library, out, len(SERVERS), **KINDS[request.param])
    assert isinstance(graph.layout, LAYOUTS[graph.layout.name])
    return graph


def test_what_is_written_passes_all_checks(shared_library, divided):
    check_structure(divided.path, SERVERS)
    assert check_rows(divided.path, SERVERS)
    check_partition(divided, SERVERS)
    assert "the library" in divided.layout.explain("the library")
    assert divided.schema == shared_library.schema
    for name in ("train", "val"):
        np.testing.assert_array_equal(divided.split(name), shared_library.split(name))


def test_maps_are_inverse_and_ascending_within_a_server(divided):
    for node_type, kind in divided.schema.node_types.items():
        original = divided.original_ids(node_type)
        np.testing.assert_array_equal(np.sort(original), np.arange(kind.count))
        back = divided.global_ids(node_type)[original]
        np.testing.assert_array_equal(back, np.arange(kind.count))
        for server in SERVERS:
            first, stop = divided.book.range(node_type, server)
            assert (np.diff(original[first:stop]) > 0).all()
    assert 0 in np.diff(divided.book.offsets["venue"])


def test_rows_belong_to_their_original_nodes_and_are_served(shared_library, divided):
    shards = [Shard.open(divided.path / f"server-{server}") for server in SERVERS]
    assert [(shard.server, shard.servers) for shard in shards] == [(s, 3) for s in SERVERS]
    for node_type, kind in divided.schema.node_types.items():
        found = np.zeros((kind.count, kind.feature_dim or 0), np.bool_)
        for server in SERVERS:
            stored = divided.stored(node_type, server)
            of_server = divided.layout.columns(node_type, server)
            columns = slice(of_server.start, of_server.stop)
            ids = divided.original_ids(node_type)[stored.first : stored.stop]
            found[ids, columns] = True
            if node_type not in shared_library.schema.labels:
                assert divided.labels(node_type, server) is None
            elif stored.count:
                labels = divided.labels(node_type, server)
                np.testing.assert_array_equal(labels, shared_library.labels(node_type)[ids])
            if kind.feature_dim is None:
                assert divided.features(node_type, server) is None
            elif stored.count:
                features = divided.features(node_type, server)
                expected = shared_library.features(node_type)[ids, columns]
                assert features is not None
                assert features.dtype == expected.dtype
                np.testing.assert_array_equal(features, expected)
                table = shards[server].table("features", node_type)
                assert table.spec.first_id == stored.first
                served = np.empty((stored.count, table.row_bytes), np.uint8)
                table.gather(np.arange(stored.count), served)
                np.testing.assert_array_equal(served.view(features.dtype), features)
        # What no hop reads is not stored where relations are divided.
        assert found.all() or divided.partitions


def test_topology_keeps_the_original_order_of_neighbours(shared_library, divided):
    assert set(divided.relations) == set(shared_library.schema.relations) or divided.partitions
    for relation in divided.relations:
        whole, topology = shared_library.topology(relation), divided.topology(relation)
        # While somebody reads a topology, others get the same one.
        assert divided.topology(relation) is topology or "partitioned" in divided.layout.name
        src, dst = divided.original_ids(relation.src), divided.original_ids(relation.dst)
        for row, original in enumerate(dst):
            edges = slice(topology.indptr[row], topology.indptr[row + 1])
            expected = slice(whole.indptr[original], whole.indptr[original + 1])
            # Equal as sequences: neighbours stand in the order of their original ids.
            np.testing.assert_array_equal(src[topology.indices[edges]], whole.indices[expected])
            np.testing.assert_array_equal(topology.edge_ids[edges], whole.edge_ids[expected])
        assert topology.indptr[0] == 0
        np.testing.assert_array_equal(topology.in_degrees, whole.in_degrees[dst])
        np.testing.assert_array_equal(topology.out_degrees, whole.out_degrees[src])


def test_edge_features_stand_in_the_order_of_the_edges(shared_library, divided):
    relation, total = Relation("author", "links", "paper"), 0
    for server in SERVERS:
        stored = divided.stored(str(relation), server)
        if stored.count:
            rows = divided.features(str(relation), server)
            ids = divided.topology(relation).edge_ids[stored.first : stored.stop]
            np.testing.assert_array_equal(rows, shared_library.features(relation)[ids])
            assert divided.features(str(Relation("paper", "links", "paper")), server) is None
        total += stored.count
    assert total == shared_library.schema.relations[relation].count or divided.partitions


def _homes(graph: PartitionedGraph, node_type: str) -> np.ndarray:
    """Return [count], the server of each original id."""
    return graph.book.home(node_type, graph.global_ids(node_type))


def test_edge_cut_and_balance_equal_plain_counts(shared_library, tmp_path):
    divided = partition_graph(shared_library, tmp_path / "parts", 3, "stream")
    description = divided.description
    cut_edges = edges = 0
    for relation, kind in shared_library.schema.relations.items():
        topology = shared_library.topology(relation)
        dst = np.repeat(_homes(divided, relation.dst), np.diff(topology.indptr))
        cut = int((_homes(divided, relation.src)[topology.indices] != dst).sum())
        share = cut / kind.count if kind.count else 0.0
        assert description["edge_cut_by_relation"][str(relation)] == pytest.approx(share, abs=1e-6)
        cut_edges, edges = cut_edges + cut, edges + kind.count
    assert description["edge_cut"] == pytest.approx(cut_edges / edges, abs=1e-6)
    shares, in_edges = description["shares"]["servers"], np.zeros(3, np.int64)
    for name in shared_library.schema.node_types:
        homes = _homes(divided, name)
        assert shares["nodes"][name] == np.bincount(homes, minlength=3).tolist()
    for relation in shared_library.schema.relations:
        degrees = shared_library.topology(relation).in_degrees
        np.add.at(in_edges, _homes(divided, relation.dst), degrees)
    assert shares["edges"] == in_edges.tolist()
    homes = _homes(divided, shared_library.schema.target_type())
    for split, counts in shares["splits"].items():
        assert counts == np.bincount(homes[shared_library.split(split)], minlength=3).tolist()
    largest = shares["largest_over_mean"]["edges"]
    assert largest == pytest.approx(in_edges.max() / in_edges.mean(), abs=1e-6)
    nodes, train = np.sum([*shares["nodes"].values()], axis=0), shares["splits"]["train"]
    for name, counts in (("nodes", nodes), ("edges", shares["edges"]), ("train", train)):
        assert [share[name] for share in description["per_server"]] == list(counts)
        expected = max(counts) / np.mean(counts)
        assert description["balance"][name] == pytest.approx(expected, abs=1e-6)


def test_an_edge_target_is_balanced_and_kept(tmp_path):
    relation = Relation("author", "writes", "paper")
    graph = GraphDirectory.from_arrays(
        tmp_path / "links",
        {relation: [[0, 1, 2, 0], [3, 0, 3, 1]]},
        splits={"train": [0, 2]},
        counts={"author": 3, "paper": 4},
        target=relation,
    )
    divided = partition_graph(graph, tmp_path / "two", 2, "random")
    home = _homes(divided, "paper")[3]
    shares = [share["train"] for share in divided.description["per_server"]]
    assert shares == [2 if server == home else 0 for server in range(2)]
    np.testing.assert_array_equal(divided.split("train"), [0, 2])


def test_partitioned_topology_is_the_replicated_one_in_parts(shared_library, tmp_path):
    whole, parts = (
        partition_graph(shared_library, tmp_path / topology, 3, "random", 5, topology=topology)
        for topology in ("replicated", "partitioned")
    )
    assert isinstance(parts.layout, DividedTopology)
    assert not list((parts.path / "topology").rglob("indices.npy"))
    for server, share in enumerate(parts.description["per_server"]):
        for relation in shared_library.schema.relations:
            expected, stored = whole.topology(relation), parts.topology(relation, server)
            for name in ("in_degrees", "out_degrees"):
                np.testing.assert_array_equal(getattr(stored, name), getattr(expected, name))
            degrees, own = np.diff(expected.indptr), parts.book.range(relation.dst, server)
            np.testing.assert_array_equal(np.diff(stored.indptr), degrees[slice(*own)])
            edges = slice(*expected.indptr[[*own]].tolist())
            np.testing.assert_array_equal(stored.indices, expected.indices[edges])
            np.testing.assert_array_equal(stored.edge_ids, expected.edge_ids[edges])
            assert stored.stored is not None
            assert stored.stored.all_ids().tolist() == list(range(*own))
            ids = np.arange(degrees.size)
            np.testing.assert_array_equal(stored.list_destinations(), ids.repeat(degrees)[edges])
            rows = parts.features(str(relation), server)
            if rows is not None:
                np.testing.assert_array_equal(rows, whole.features(str(relation), server))
        files = [*(parts.path / f"server-{server}" / "topology").rglob("*.npy")]
        files += (parts.path / "topology").rglob(f"*-{server}.npy")
        files += (parts.path / "topology").rglob("indptr.npy")
        assert share["topology_bytes"] == sum(file.stat().st_size for file in files)
    assert parts.description["replicated_topology_bytes"] == topology_bytes(whole.path)


def topology_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "topology").rglob("*.npy"))


def test_servers_and_ranks_map_their_share(shared_library, tmp_path, monkeypatch):
    """What they map of others' nodes is what docs/inside/layouts.md says, when it is read."""
    parts = partition_graph(shared_library, tmp_path / "parts", 3, "random", topology="partitioned")
    schema = shared_library.schema

    def mapped_files() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split(maxsplit=5)[-1] for line in lines if str(parts.path) in line}
        return {str(Path(path).relative_to(parts.path)) for path in paths}

    def others(files: set[str]) -> set[str]:
        return {file for file in files if not re.match("server-0/|.*-0.npy$", file)}

    server = Shard.open(parts.path / "server-0")
    assert any(file.startswith("server-0/topology/") for file in mapped_files())
    assert not others(mapped_files())
    del server
    sampler = NeighborSampler(
        {relation: parts.topology(relation, 0) for relation in schema.relations},
        {name: parts.original_ids(name) for name in schema.node_types},
        schema.target_type(),
        [-1],
        0,
    )
    subgraph = sampler.sample(np.arange(*parts.book.range(sampler.target, 0)), 0, 0)
    (blocks,) = subgraph.typed_blocks()
    with_features = {
        f"topology/{r}/indptr.npy" for r, kind in schema.relations.items() if kind.feature_dim
    }
    assert others(mapped_files()) == with_features
    for nodes in blocks.nodes.values():
        assert nodes.original.shape == (nodes.count,)
    read = others(mapped_files()) - with_features
    # Tables of large types have entries for what was sampled alone.
    assert isinstance(sampler.row_table(sampler.target), DenseTable)
    monkeypatch.setattr(frontiers, "MOST_DENSE", 0)
    assert isinstance(sampler.row_table(sampler.target), HashTable)
    assert read
    assert all(re.match(r"maps/.*/original_ids-[12].npy$", file) for file in read)


def test_a_machine_with_one_server_s_folder_can_read_its_topology(shared_library, tmp_path):
    parts = partition_graph(shared_library, tmp_path / "parts", 3, "random", topology="partitioned")
    for server in (0, 2):
        shutil.rmtree(parts.path / f"server-{server}")
    check_structure(parts.path, [1])
    alone = PartitionedGraph.open(parts.path)
    check_partition(alone, [1])
    # A list that lacks some of its edges is found.
    relation = max(alone.relations, key=lambda name: alone.schema.relations[name].count)
    file = layout.topology_file(parts.path / "server-1", relation, "indptr")
    indptr = np.load(file)
    row = int(np.diff(indptr).argmax())
    indptr[row + 1 :] -= 1
    longest = row + alone.book.range(relation.dst, 1)[0]
    np.save(file, indptr)
    for name in ("indices", "edge_ids"):
        array_file = file.with_name(f"{name}.npy")
        np.save(array_file, np.load(array_file)[:-1])
    with pytest.raises(GraphError, match=rf"indptr of .*: of node {longest}: expected \d+ edges"):
        check_partition(PartitionedGraph.open(parts.path), [1])
    with pytest.raises(GraphError, match=r"topology/.*: "):
        check_structure(parts.path, [1])
