"""Graphs that are divided by relation: what a server stores, owns, draws and sends.

The gradients are in test_conformance.py.
"""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from cache_server.store.shard import Shard
from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_runner
from hopper.engines.sharded_parameters import ShardedParameters
from hopper.errors import ConfigError, ExactnessError, RequestError
from hopper.features import RemoteRows
from hopper.graph.schema import Relation
from hopper.hetero.divide import divide_graph
from hopper.hetero.rooted import root_name
from hopper.migrate.flat_model import FlatModel
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog
from hopper.train.checkpoint_files import CheckpointFiles

from .conftest import assert_exact
from .features import CUT, Sections, World, case_of, merged
from .graphs import BORROWS, CITES, KNOWS, LIKES, WROTE, memory_for_parts

OF_EDGES = {
    "links of one of several types": {KNOWS, LIKES},
    "links of several types": {BORROWS, WROTE},
    "labels of several types": set(),
    "links of several types in time": {BORROWS, WROTE},
    "labels of several types in time": set(),
}


@pytest.mark.parametrize(("feature", "model"), [("types", "hgt"), ("types, learned rows", "rgat")])
def test_what_servers_send_does_not_grow_with_their_ranks(feature, model, train):
    """A server adds up the weights of its relations alone, and one rank of each server adds up
    those that all have. What stays with one server is in the files of a run all the same."""
    worlds = (("zero_hop in passes", World(2, 1)), ("raf", World(2, 1)), ("raf", World(2, 2)))
    # With a bound that counts, and moments that every update depends on.
    bound = {"epochs": 2, "clip_norm": 0.3, "weight_decay": 0.01, "checkpoint_every": 100}
    bound |= {"evaluate_every": int("learned" not in feature), "record_gradients": []}
    asked: list[Any] = [
        (case_of(feature, engine, world, 0, model), {"train": bound}) for engine, world in worlds
    ]
    by_node, *by_relation = train(asked)
    expected_files = CheckpointFiles(by_node.folder).newest, by_node.folder / "best.safetensors"
    for run in by_relation:
        assert run.result["losses"] == pytest.approx(by_node.result["losses"], rel=1e-9)
        assert run.result["val"] == by_node.result["val"]
        for file in expected_files:
            assert file is not None
            expected = load_file(file)
            tensors = load_file(run.folder / file.relative_to(by_node.folder))
            assert tensors.keys() == expected.keys()
            for key, value in expected.items():
                assert tensors[key] == pytest.approx(value, rel=1e-7, abs=1e-9), (file, key)
    sent = [run.result["bytes"]["gradient"] for run in (by_node, *by_relation)]
    assert sent[0] > sent[1] > 0
    # Gradients of learnable rows travel between ranks of a server, too.
    assert sent[1] == sent[2] or "learned" in feature


def test_a_parameter_that_another_server_uses_too_is_named():
    """A shared parameter that is taken for a server's own would lose a part of its gradient."""
    packed = FlatModel(torch.nn.Linear(3, 2))
    cluster = Cluster(0, 2, 1, torch.device("cpu"), 1.0)
    shards = ShardedParameters(packed, cluster, {"weight": 1})
    assert shards.numbers_apart == 6
    packed.gradients[4] = 0.5
    with pytest.raises(ExactnessError, match=r"parameter weight belongs .* and server 0 computed"):
        shards.sum_gradients("summing")


@pytest.mark.parametrize("servers", [4, 6])
def test_a_relation_that_is_too_large_is_cut(servers, divided):
    """There are four root relations. On four servers two of them share one, because one takes two.
    On six the largest of the others has a replica."""
    parts = divided(case_of("types", "raf", CUT._replace(servers=servers), 0, "rgcn"))
    shares = [partition.part for partition in parts.partitions if partition.roots == (CITES,)]
    assert shares == [(0, 2), (1, 2)]
    assert [partition.part.num_shards for partition in parts.partitions].count(1) == servers - 2
    assert Shard.open(parts.path / f"server-{servers - 1}").tables == {}
    with pytest.raises(ConfigError, match=r"store some nodes of a type each"):
        RemoteRows(parts, ["127.0.0.1:1"] * servers, 1.0)


def test_a_graph_whose_only_root_relation_is_cut(graph_of, train_cases, tmp_path):
    """The relation, with metapaths, is cut over two servers with two ranks each."""
    graph, paths = graph_of("bare"), [["author/to/paper", "paper/to/author"]]
    memory = memory_for_parts(graph, Relation("author", "to", "paper"), paths)
    options: dict[str, Any] = {"metapaths": paths, "server_memory": memory}
    parts = divide_graph(graph, tmp_path / "parts", 2, "meta", layers=2, **options)
    assert [partition.part for partition in parts.partitions] == [(0, 2), (1, 2)]
    case = case_of("metapaths", "raf", World(2, 2), 0, "hgt")
    along: Sections = {"model": {"metapaths": paths}}
    values = merged(case.values(parts, tmp_path / "run"), along)
    [result] = train_cases([values], 4, tmp_path)
    assert_exact(values, 4)
    assert result["rows"]["remote"] == 0


def test_links_of_other_splits_are_stored_nowhere_even_reversed(graph_of, divided, tmp_path):
    graph = graph_of("people")
    parts = divided(case_of("links of one of several types", "raf", World(3, 1)))
    by_node = partition_graph(graph, tmp_path / "by node", 1)
    knows, turned = Relation(*KNOWS), Relation("person", "known_by", "person")
    assert parts.reverse_relations(knows) == by_node.reverse_relations(knows) == [turned]
    for relation in graph.schema.relations:
        copies = [parts.topology(relation)]
        copies += [
            parts.topology(relation, server)
            for server, partition in enumerate(parts.partitions)
            if relation in partition.relations
        ]
        for copy in copies:
            np.testing.assert_array_equal(copy.indptr, by_node.topology(relation).indptr)
            np.testing.assert_array_equal(copy.edge_ids, by_node.topology(relation).edge_ids)
    assert parts.schema.relations[turned].count < graph.schema.relations[turned].count
    assert parts.links("val").count == graph.links("val").count


@pytest.mark.parametrize("feature", OF_EDGES)
def test_a_server_reads_its_own_folder_and_what_all_have(feature, divided, tmp_path):
    """A machine without the folders of other servers leaves out edges, and finds known links."""
    case = case_of(feature, "raf", World(3, 1), 1, "rgcn")
    parts = divided(case)
    config = make_config(case.values(parts, tmp_path / "run"))
    for server in range(3):
        others = [f"server-{number}" for number in range(3) if number != server]
        folder = tmp_path / f"machine {server}"
        shutil.copytree(parts.path, folder, ignore=shutil.ignore_patterns(*others))
        request = Request(config, PartitionedGraph.open(folder))
        trainer = make_runner(request, RunLog(None), 100, torch.device("cpu"), server=server)
        assert trainer.links is not None
        partition = request.graph.partitions[server]
        # Both targets, and, of people, what tells one of them the other way round.
        revealing = {Relation(*words) for words in OF_EDGES[feature]}
        if revealing:
            revealing |= {r for r in partition.relations if r.rel in ("known_by", "lent_to")}
        assert set(trainer.links.excluded((0, 1))) == partition.relations & revealing
        versions = trainer.links.pairs(trainer.links.batch((0, 1)).roots, 0, 1).versions
        own_types = {relation.dst for relation in partition.roots}
        roots = {root_name(name): ids for name, ids in versions.items() if name in own_types}
        assert trainer.sampler.sample_versions(roots, 0, 1).num_edges
        for relation in request.schema.target_relations:
            assert request.graph.topology(relation).indices.size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server_memory": 10_000}, r"^--server-memory: only graphs whose nodes are predicted"),
        ({"metapaths": [["borrows"]]}, r"metapaths: metapaths start from one type"),
    ],
)
def test_what_cannot_be_divided_is_refused(options, message, graph_of, tmp_path):
    with pytest.raises(RequestError, match=message):
        divide_graph(graph_of("library"), tmp_path / "parts", 2, "meta", layers=2, **options)
    assert not (tmp_path / "parts").exists()
