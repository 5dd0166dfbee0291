"""Metatree and meta-partitioning: the worked example of Figure 6, what it leaves open, and how it
is printed."""

import pytest

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, NodeType, Relation
from hopper.hetero.meta_partition import MetaPartition, divide
from hopper.hetero.metatree import Vertex, make_metatree, weigh

AFFILIATED = Relation("author", "affiliated_with", "institution")
WRITES = Relation("author", "writes", "paper")
TOPIC = Relation("paper", "has_topic", "field")
CITES = Relation("paper", "cites", "paper")
REV_AFFILIATED = Relation("institution", "rev_affiliated_with", "author")
REV_WRITES = Relation("paper", "rev_writes", "author")
REV_TOPIC = Relation("field", "rev_has_topic", "paper")


def make_schema(types: dict[str, int], relations: dict[Relation, int], target: str) -> GraphSchema:
    return GraphSchema(
        name="typed",
        node_types={name: NodeType(count) for name, count in types.items()},
        relations={relation: EdgeType(count) for relation, count in relations.items()},
        target=target,
    )


@pytest.fixture(scope="module")
def mag() -> GraphSchema:
    """ogbn-mag's metagraph, citations symmetrised, the other relations reversed (Figure 2)."""
    types = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field": 59_965}
    relations = {
        AFFILIATED: 1_043_998, REV_AFFILIATED: 1_043_998,
        WRITES: 7_145_660, REV_WRITES: 7_145_660,
        TOPIC: 7_505_078, REV_TOPIC: 7_505_078,
        CITES: 10_832_542,
    }  # fmt: skip
    return make_schema(types, relations, "paper")


def make_star(weights: list[int]) -> GraphSchema:
    """Make a target with a relation from each of some types, which have ``weights`` nodes."""
    types = {"t": 0} | {f"leaf{i}": weight for i, weight in enumerate(weights)}
    relations = {Relation(f"leaf{i}", "to", "t"): 0 for i in range(len(weights))}
    return make_schema(types, relations, "t")


def test_the_metatree_of_ogbn_mag(mag):
    tree = make_metatree(mag, "paper", 2)
    assert tree.roots == (WRITES, REV_TOPIC, CITES) == tuple(sorted(tree.roots))
    # Papers are met again one hop further, with all that leads to them.
    assert tree.children == {
        Vertex("paper", 0): (WRITES, REV_TOPIC, CITES),
        Vertex("author", 1): (REV_AFFILIATED, REV_WRITES),
        Vertex("field", 1): (TOPIC,),
        Vertex("paper", 1): (WRITES, REV_TOPIC, CITES),
    }
    weights = {root: weigh(mag, tree, [root]) for root in tree.roots}
    assert weights == {REV_TOPIC: 15_806_510, WRITES: 17_215_096, CITES: 27_414_283}


def test_the_partitions_of_ogbn_mag(mag):
    division = divide(mag, make_metatree(mag, "paper", 2), 2)
    cites, rest = division.shares
    assert cites.roots == (CITES,)
    assert set(cites.relations) == {CITES, WRITES, REV_TOPIC}
    assert (cites.nodes, cites.edges) == (1_931_003, 25_483_280)
    assert set(rest.roots) == {WRITES, REV_TOPIC}
    assert set(rest.relations) == {WRITES, REV_WRITES, REV_AFFILIATED, REV_TOPIC, TOPIC}
    assert (rest.nodes, rest.edges) == (1_939_743, 30_345_474)
    # Institutions are read through their reverse relation only.
    assert division.unreachable == (AFFILIATED,)
    assert division.replication == pytest.approx((1_931_003 + 1_939_743) / 1_939_743)
    assert division.as_json()["servers"][0]["roots"] == ["paper/cites/paper"]


def test_the_metatree_visits_a_relation_once_for_each_reader_and_depth(mag):
    tree = make_metatree(mag, "paper", 3)
    visited = list(tree.read_from(CITES))
    assert len(visited) == len(set(visited))
    assert [depth for *ends, depth in visited if ends == [CITES, CITES]] == [1, 2]
    # At the root only the relation itself, whatever else leads to papers.
    assert [read for read in visited if read[2] == 0] == [(CITES, None, 0)]
    read = {CITES, WRITES, REV_TOPIC, REV_AFFILIATED, REV_WRITES, TOPIC}
    assert tree.relations_of([CITES]) == sorted(read)
    one_layer = divide(mag, make_metatree(mag, "paper", 1), 3)
    assert [share.relations for share in one_layer.shares] == [{CITES}, {WRITES}, {REV_TOPIC}]
    assert set(one_layer.unreachable) == {AFFILIATED, REV_AFFILIATED, REV_WRITES, TOPIC}


def test_metapaths_restrict_what_is_followed(mag):
    tree = make_metatree(mag, "paper", 2, [["writes", "rev_writes"], ["cites"]])
    assert tree.roots == (WRITES, CITES)
    assert tree.children[Vertex("author", 1)] == (REV_WRITES,)
    # A path that is shorter than the model ends.
    assert tree.children[Vertex("paper", 1)] == ()
    assert tree.relations_of([CITES]) == [CITES]
    assert tree.types_of([WRITES]) == ["author", "paper"]


def test_a_hop_draws_for_every_type_that_was_reached(mag):
    tree = make_metatree(mag, "paper", 2)
    assert tree.read_at(0) == (tree.roots, ("paper",))
    relations, types = tree.read_at(1)
    assert types == ("author", "field", "paper")
    assert set(relations) == {WRITES, REV_TOPIC, CITES, REV_AFFILIATED, REV_WRITES, TOPIC}


@pytest.mark.parametrize(
    ("target", "layers", "metapaths", "message"),
    [
        ("venue", 2, [], "target: expected one of author, field, .*, given 'venue'"),
        ("paper", 0, [], "layers: expected 1 to 1,000, given 0"),
        ("paper", 2, [["reads"]], "relation 'reads': expected one of .*there is none"),
        ("paper", 2, [["writes", "cites"]], "cites/paper ends in 'paper'; expected .*'author'"),
        ("paper", 1, [["writes", "rev_writes"]], "expected 1 to 1 relations, given 2"),
        ("paper", 1, [[]], "expected 1 to 1 relations, given 0"),
    ],
)  # fmt: skip
def test_bad_requests_for_a_metatree_are_refused(mag, target, layers, metapaths, message):
    with pytest.raises(RequestError, match=message):
        make_metatree(mag, target, layers, metapaths)


def test_a_target_without_relations_and_an_ambiguous_name_are_refused():
    types, relations = {"a": 1, "b": 1}, {Relation("a", "to", "b"): 1, Relation("b", "to", "b"): 1}
    schema = make_schema(types, relations, "b")
    with pytest.raises(RequestError, match="no relation leads to 'a'"):
        make_metatree(schema, "a", 1)
    assert make_metatree(schema, "b", 1, [["b/to/b"]]).roots == (Relation("b", "to", "b"),)
    with pytest.raises(RequestError, match=r"a/to/b, b/to/b have that name"):
        make_metatree(schema, "b", 1, [["to"]])


def divide_star(weights: list[int], servers: int) -> MetaPartition:
    star = make_star(weights)
    return divide(star, make_metatree(star, "t", 1), servers)


def test_spare_servers_split_the_heaviest_sub_metatrees():
    division = divide_star([90, 40, 10], 6)
    assert [(share.roots[0].src, share.place, share.copies) for share in division.shares] == [
        *(("leaf0", place, 3) for place in range(3)),
        *(("leaf1", place, 2) for place in range(2)),
        ("leaf2", 0, 1),
    ]


def test_empty_types_leave_no_server_idle():
    division = divide_star([5, 0, 0, 0], 4)
    assert all(share.roots for share in division.shares)
    assert division.replication == 1.0


def test_given_weights_decide_the_shares():
    graph = make_star([1, 1, 100])
    tree = make_metatree(graph, "t", 1)
    leaf0, leaf1, leaf2 = tree.roots
    weights = {leaf0: 50, leaf1: 30, leaf2: 20}
    shares = divide(graph, tree, 2, weights).shares
    assert [share.roots for share in shares] == [(leaf0,), (leaf1, leaf2)]
    with pytest.raises(RequestError, match="weights: expected one of at least 0 for leaf2/to/t"):
        divide(graph, tree, 2, weights | {leaf2: -1})
    with pytest.raises(RequestError, match="servers: expected 1 to 65,536"):
        divide(graph, tree, 0)


def test_the_command(tmp_path, capsys):
    written, likes = Relation("paper", "by", "author"), Relation("author", "likes", "venue")
    GraphDirectory.from_arrays(
        tmp_path / "graph",
        {WRITES: [[0, 1], [0, 2]], written: [[1], [0]], likes: [[1], [0]]},
        counts={"paper": 3, "author": 2, "venue": 1},
        target="paper",
    )
    command = ["inspect", "metatree", str(tmp_path / "graph")]
    assert main([*command, "--layers", "2", "--servers", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("paper\n└── author/writes/paper\n    └── paper/by/author\n")
    printed = " ".join(out.split())
    # 3 papers, 2 authors, 2 + 1 edges.
    assert "author/writes/paper │ 8" in printed
    assert "not read within 2 hops of paper: author/likes/venue" in printed
    for options, text in (
        (["--target", "editor"], "target: expected one of author, paper, venue"),
        (["--metapath", "writes,likes"], "author/likes/venue ends in 'venue'"),
    ):
        assert main([*command, *options]) == 1
        assert text in capsys.readouterr().err
