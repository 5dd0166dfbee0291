"""What a run may ask of an engine, as data: graphs, models, features, and how engines are varied.

:func:`choose` combines them, for test_conformance.py. No tests of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pairwise import pairwise

from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation
from hopper.hetero.divide import divide_graph
from hopper.hetero.write_partition import partition_by_relation
from hopper.partition import PartitionedGraph, partition_graph
from tests.conftest import make_community_graph
from tests.graphs import make_nodes

from .conftest import ENGINES, Sections, merged
from .typed_cases import (
    COUNTS,
    LEARNABLE,
    MODELS,
    WITH_FEATURES,
    make_drawn_graph,
    make_graph,
    make_library,
    make_people,
    memory_for_parts,
)

GLOBAL_BATCH = 24
"""roots of an iteration, on any number of ranks: all cases of a training then have its losses"""
NEAR = Relation("item", "near", "item")


def _links(out: Path, *, labelled: bool) -> GraphDirectory:
    """Edges of the community graph, with times; some are in no split, and are read all the same."""
    items = make_community_graph(out.with_name(f"items of {out.name}"), nodes=300)
    topology = items.topology(NEAR)
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    ends = np.stack([topology.indices, dst])
    order = np.random.default_rng(2).permutation(dst.size)
    return GraphDirectory.from_arrays(
        out,
        {NEAR: ends},
        {"item": np.asarray(items.features("item"))},
        {NEAR: ends.sum(0) % 3} if labelled else None,
        {"train": order[:200], "val": order[200:230], "test": order[230:240]},
        times={NEAR: ends.sum(0) % 9},
        target=NEAR,
    )


def _tasks(out: Path) -> GraphDirectory:
    """A class with a name, two values, and three labels; some nodes lack some of them."""
    generator = np.random.default_rng(5)
    topics = generator.integers(-1, 4, 150)
    value = generator.normal(size=(150, 2)).astype(np.float32)
    value[generator.random(150) < 0.3] = np.nan
    labels = {
        "topic": ["" if topic < 0 else f"t{topic}" for topic in topics.tolist()],
        "value": value,
        "keywords": generator.integers(0, 2, (150, 3)),
    }
    return GraphDirectory.from_arrays(
        out,
        generator.integers(0, 150, (2, 1200)),
        features=generator.random((150, 6)),
        labels={"node": labels},
        options=ImportOptions(split=RandomSplit(0.5, 0.2)),
    )


GRAPHS: dict[str, Callable[[Path], GraphDirectory]] = {
    "items": lambda out: make_community_graph(out, nodes=300),
    "bare items": lambda out: make_community_graph(out, nodes=300, with_features=False),
    "nodes": lambda out: make_nodes(out, edge_features=True, edge_weights=True, times=True),
    "tasks": _tasks,
    "links": lambda out: _links(out, labelled=False),
    "labels": lambda out: _links(out, labelled=True),
    "typed": lambda out: make_graph(out, tuple(COUNTS)),
    "bare": lambda out: make_graph(out, WITH_FEATURES),
    "learned": lambda out: make_graph(out, ()),
    "drawn": make_drawn_graph,
    "people": make_people,
    "library": make_library,
    "library of labels": lambda out: make_library(out, labelled=True),
    "library in time": lambda out: make_library(out, is_timed=True),
    "library of labels in time": lambda out: make_library(out, labelled=True, is_timed=True),
}
ONE_TYPE: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sage": {"name": "sage", "layers": 3, "hidden": 8, "dropout": 0.3},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 3, "dropout": 0.3},
    # Wider than the features, so that these are added up before they are multiplied.
    "wide sage": {"name": "sage", "layers": 2, "hidden": 12, "dropout": 0.3},
    "deepgcn": {"name": "deepgcn", "layers": 3, "hidden": 8, "dropout": 0.3},
    "film": {"name": "film", "layers": 3, "hidden": 8, "dropout": 0.3},
    "pool": {"name": "sage", "aggregator": "pool", "layers": 2, "hidden": 8, "dropout": 0.3},
    "lstm": {"name": "sage", "aggregator": "lstm", "layers": 2, "hidden": 8, "dropout": 0.3},
    "wide gcn": {"name": "gcn", "layers": 2, "hidden": 12, "dropout": 0.3},
    "one layer": {"name": "sage", "layers": 1, "hidden": 8},
    "one deep layer": {"name": "deepgcn", "layers": 1, "hidden": 8},
}
TYPED: dict[str, dict[str, Any]] = MODELS | {
    "rgcn, one by one": {"name": "rgcn", "layers": 2, "hidden": 8, "merge": False},
    "rgat, one by one": {"name": "rgat", "layers": 2, "hidden": 4, "heads": 2, "merge": False},
    "hgt, one by one": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2, "merge": False},
    "hgt, three layers": {"name": "hgt", "layers": 3, "hidden": 8, "heads": 2, "dropout": 0.2},
    "rgcn without root weight": {"name": "rgcn", "layers": 2, "hidden": 8, "root_weight": False},
    "rgat with a head": {"name": "rgat", "layers": 2, "hidden": 8, "heads": 2, "head": True},
    "own, mean, without root weight": {
        **MODELS["own, mean of present"],
        "combine": "mean",
        "root_weight": False,
    },
    "gated": {
        "name": "hgnn",
        "layers": 2,
        "hidden": 8,
        "aggregate": "tests.engines.own_aggregations:Gated",
    },
    "rgcn of rows": {"name": "rgcn", "layers": 2, "hidden": 8, "input_weights": False},
    "shared": {
        "name": "shared_weights:SharedWeights",
        "name_options": {"smooth": True},
        "layers": 2,
        "hidden": 8,
        "dropout": 0.2,
    },
}
# What a relation's parts on several servers yield is joined.
_PARTS = MODELS["own, relations apart"] | {"aggregate": "own_aggregations:DroppingInParts"}
IN_PARTS: dict[str, dict[str, Any]] = {
    "in parts": _PARTS,
    "in parts, mean of present": _PARTS | {"combine": "mean_of_present"},
    "in parts, mean": _PARTS | {"combine": "mean"},
    "in parts, not added up": _PARTS
    | {"aggregate": "own_aggregations:Smooth", "combine": "mean_of_present"},
}
FULL: dict[str, Any] = {"kind": "full"}
CACHE: dict[str, Any] = {"size": "20%", "decline": False}
# How every engine is varied, from case to case. A name in braces stands for the engine's own.
VARIANTS: dict[str, dict[str, Sections]] = {
    "model_centric": {
        "model_centric": {},
        "locality": ENGINES["locality"],
        "model_centric, cached": {"cache": CACHE | {"policy": "hotness"}},
        "model_centric, on the device": {"cache": CACHE | {"policy": "lru", "memory": "device"}},
        "model_centric, foreseen": {"pipeline": {"depth": 2, "lookahead": 2}},
    },
    "zero_hop in passes": {
        "zero_hop in passes": {},
        "zero_hop": {"train": {"micro_batch": 0}},
        "zero_hop, cached": {"cache": CACHE | {"policy": "benefit"}},
    },
    "hop": {
        "hop": {},
        "hop, no pregather": {"hop": {"pregather": False}},
        "hop, one step merged": {"hop": {"merge": 1}},
        "hop, gradients only": {"hop": {"migrate": "gradients"}},
        "hop, one step left": {"hop": {"merge": "all but one"}},
        "hop, merged at random": {
            "hop": {"merge": 1, "merge_selection": "random", "migrate": "gradients"}
        },
    },
    "cooperative": {"cooperative": {}},
    "naive": {"naive": {}},
    "p3": {"p3": {}},
    "neutronstar": {
        f"neutronstar, {way}": {"train": {"engine_options": {"dependencies": way}}}
        for way in ("hybrid", "fetch", "recompute")
    },
    "raf": {"raf": {}, "raf, one finishes": {"raf": {"reduce": "designated"}}},
}
OF_ONE_TYPE = ("model_centric", "zero_hop in passes", "hop", "cooperative", "naive", "p3")
OF_ONE_TYPE += ("neutronstar",)
OF_SEVERAL_TYPES = ("model_centric", "zero_hop in passes", "hop", "cooperative", "raf")


class World(NamedTuple):
    """How a graph is divided, and who trains it."""

    servers: int
    ranks_per_server: int
    topology: str = "replicated"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.servers * self.ranks_per_server


WORLDS = (World(2, 1), World(2, 2), World(3, 1, "partitioned"), World(2, 1, "halo:1"))
# Where relations are divided; on six servers some have replicas.
BY_RELATION = (World(2, 1), World(2, 2), World(3, 1), World(6, 1))
ALONE = (World(1, 1), World(1, 2))
# A root relation has its edges on two servers.
CUT, CUT_OF_SIX = World(4, 1, "cut"), World(6, 1, "cut")


@dataclass(frozen=True)
class Feature:
    """What a run asks for.

    Attributes
    ----------
    graph: a key of :data:`GRAPHS`.
    models: keys of :data:`ONE_TYPE` or :data:`TYPED`, of which each case has one.
    sections: the configuration.
    variants: more of it, of which each case has one.
    division: options with which the graph is divided; of_relations: where that is by relation.
    whole: engines that read this only of a topology that is replicated.
    refused: by engine, what it says.
    of_every_model: engines that train each of the models, since they divide what these compute.
    few: the second iteration has fewer roots than there are ranks.
    scored: scores are compared, too.
    """

    graph: str
    models: Sequence[str]
    sections: Sections = field(default_factory=dict)
    variants: Sequence[Sections] = ({},)
    division: Mapping[str, Any] = field(default_factory=dict)
    of_relations: Mapping[str, Any] = field(default_factory=dict)
    whole: Collection[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    few: bool = False
    scored: bool = False
    of_every_model: Collection[str] = ()


def _drawn(kind: str, **options: Any) -> Sections:
    return {"sampler": {"kind": kind} | ({"kind_options": options} if options else {})}


ANY = tuple(ONE_TYPE)
TIMELESS = ("sage", "gat", "wide sage", "film", "pool", "lstm", "one layer")
NOT_FULL = {"neutronstar": r"^sampler\.kind: neutronstar trains full batches"}
NO_LEARNED = {engine: rf"^learnable\.types: {engine} " for engine in ("naive", "p3", "neutronstar")}
LINKS: dict[str, dict[str, Any]] = {
    "dot, joint": {"decoder": "dot", "negatives": "joint", "num_negatives": 5},
    "distmult, uniform": {"decoder": "distmult", "negatives": "uniform", "num_negatives": 3},
    "mlp, in batch": {"decoder": "mlp", "negatives": "in_batch", "num_negatives": 4},
    "rotate, by degree": {
        "decoder": "rotate",
        "negatives": "degree",
        "num_negatives": 3,
        "corrupt": "tail",
    },
    "dot, own": {"decoder": "dot", "negatives": "own_parts:Strides", "num_negatives": 3},
    "complex, not left out": {"decoder": "complex", "exclude": False, "corrupt": "head"},
}
LOSSES = {"mlp, in batch": "bpr", "rotate, by degree": "margin"}
OF_LINKS: list[Sections] = [
    {"task": task, "train": {"loss": LOSSES.get(name, "auto")}} for name, task in LINKS.items()
]
OF_LABELS: list[Sections] = [
    {"task": {"decoder": "bilinear", "dim": 5}},
    {"task": {"decoder": "mlp", "decoder_options": {"hidden": 5}}},
]
UNIFORM: Sections = {"task": LINKS["distmult, uniform"]}
PICKS = [_drawn("temporal", pick=pick) for pick in ("uniform", "recent")]
PATHS = [
    ["author/to/paper"],
    ["author/to/paper", "paper/to/author"],
    ["paper/to/paper", "field/to/paper"],
    ["paper/to/paper", "author/to/paper"],
]
ALONG = {"layers": 2, "metapaths": PATHS}
FEATURES: dict[str, Feature] = {
    # Of one node type: how neighbours are drawn.
    "node": Feature(
        "items", ANY, refused=NOT_FULL, scored=True, of_every_model=("cooperative", "naive", "p3")
    ),
    "few roots": Feature("items", ANY, refused=NOT_FULL, few=True),
    "full": Feature(
        "items",
        ANY,
        {"sampler": FULL, "train": {"epochs": 2}},
        scored=True,
        of_every_model=("neutronstar",),
    ),
    "labor": Feature("items", ANY, _drawn("labor"), refused=NOT_FULL),
    "layer": Feature(
        "items",
        ANY,
        {"sampler": {"kind": "layer", "layer_sizes": [60, 40, 30]}},
        refused=NOT_FULL,
        whole=OF_ONE_TYPE,
    ),
    # One or two nodes of the whole graph a hop: most frontiers stay empty.
    "empty frontiers": Feature(
        "items",
        ANY,
        {"sampler": {"kind": "layer", "layer_sizes": [2, 1, 1]}},
        refused=NOT_FULL,
        whole=OF_ONE_TYPE,
    ),
    "by weight": Feature(
        "nodes",
        ANY,
        variants=(_drawn("weighted"), _drawn("weighted", replace=True)),
        refused=NOT_FULL,
    ),
    "by weight, unbiased": Feature(
        "nodes",
        ANY,
        variants=(
            _drawn("weighted", unbiased=True),
            _drawn("weighted", unbiased=True, replace=True),
        ),
        refused=NOT_FULL,
        whole=tuple(engine for engine in OF_ONE_TYPE if engine != "cooperative"),
    ),
    "with replacement": Feature("nodes", ANY, _drawn("replacement"), refused=NOT_FULL),
    "in time": Feature("nodes", TIMELESS, variants=PICKS, scored=True),
    # Of one node type: what is read and predicted.
    "features of edges": Feature(
        "nodes", ("sage", "wide sage", "gat", "gcn"), {"model": {"edge_features": True}}
    ),
    "int8": Feature(
        "items",
        ANY,
        division={"feature_dtypes": ["int8"]},
        scored=True,
        refused={"p3": r"^features: by-dimension divides a row's numbers, and int8"},
    ),
    "bfloat16": Feature("items", ANY, division={"feature_dtypes": ["bfloat16"]}),
    "learned rows": Feature(
        "bare items",
        ("sage", "gcn", "gat"),
        {"learnable": LEARNABLE},
        refused=NO_LEARNED,
        scored=True,
    ),
    "learned rows beside features": Feature(
        "items",
        ("sage", "gat"),
        {"learnable": LEARNABLE | {"types": ["item"]}},
        refused=NO_LEARNED,
    ),
    "several tasks": Feature(
        "tasks",
        ("sage", "gat"),
        {"task": {"weights": {"value": 0.25}, "metrics": {"topic": ["macro_f1", "accuracy"]}}},
        scored=True,
    ),
    "links": Feature("links", ("sage", "gat", "gcn"), variants=OF_LINKS),
    "links in time": Feature("links", ("sage", "gat"), UNIFORM, PICKS, scored=True),
    "labels": Feature("labels", ("sage", "gat", "gcn"), variants=OF_LABELS),
    "labels in time": Feature("labels", ("gat",), OF_LABELS[0], PICKS),
    # Of several node types.
    "types": Feature("typed", tuple(TYPED)[:-2], of_every_model=("cooperative", "raf")),
    "types, few roots": Feature("typed", ("hgt", "rgcn", "own, relations apart"), few=True),
    "types, labor": Feature("bare", ("rgat", "rgcn", "hgt"), _drawn("labor")),
    "types, learned rows": Feature(
        "bare", ("rgcn", "rgat", "hgt", "rgcn in blocks", *tuple(TYPED)[-7:-2]), scored=True
    ),
    # What only draws that no layer reads would find is read all the same.
    "types, unread": Feature(
        "bare", ("rgcn without root weight",), {"sampler": {"fanouts": [1, 3]}}
    ),
    "types, learned beside features": Feature(
        "bare", ("rgcn", "hgt"), {"learnable": {"types": ["paper"]}}, scored=True
    ),
    "types, frozen rows": Feature("bare", ("rgat", "rgcn"), {"learnable": {"frozen": ["author"]}}),
    "metapaths": Feature(
        "bare",
        ("rgcn", "own, relations apart", "hgt"),
        {"model": {"metapaths": PATHS}},
        ({}, {"learnable": {"tables": "per_server_table"}}),
        of_relations=ALONG,
        scored=True,
    ),
    "tables": Feature(
        "bare",
        ("rgcn", "hgt"),
        variants=(
            {"learnable": {"tables": "per_server_table"}},
            {"learnable": {"tables": "per_relation"}},
            {"learnable": {"tables": "per_server_table"}, "sampler": {"kind": "labor"}},
        ),
        of_relations={"layers": 2},
        scored=True,
    ),
    # Learnable rows stand for one-hot vectors: R-GCN has no matrix in its first layer.
    "rows that are not projected": Feature(
        "learned", ("rgcn of rows",), {"learnable": {"tables": "per_relation", "dim": 0}}
    ),
    "types, by weight": Feature(
        "drawn",
        ("rgat", "own, mean of present", "rgcn"),
        variants=(_drawn("weighted"), _drawn("weighted", replace=True)),
        scored=True,
    ),
    "types, unbiased": Feature(
        "drawn",
        ("rgcn", "hgt", "rgat"),
        variants=(
            _drawn("weighted", unbiased=True),
            _drawn("weighted", unbiased=True, replace=True)
            | {"learnable": {"types": ["author"], "tables": "per_server_table"}},
        ),
        whole=tuple(engine for engine in OF_SEVERAL_TYPES if engine != "cooperative"),
    ),
    "types, with replacement": Feature(
        "drawn", ("hgt", "rgcn"), _drawn("replacement") | {"learnable": {"types": ["author"]}}
    ),
    "types, in time": Feature(
        "drawn",
        ("rgcn without root weight", "rgat", "hgt, three layers"),
        {"model": {"edge_features": True}},
        PICKS,
        scored=True,
    ),
    "types, features of edges": Feature(
        "drawn",
        tuple(name for name in TYPED if "one by one" in name or name in ("rgat", "gated", "hgt")),
        {"model": {"edge_features": True}},
    ),
    "types, stored forms": Feature(
        "drawn",
        ("rgcn", "hgt"),
        {"model": {"edge_features": True}},
        division={
            "feature_dtypes": ["bfloat16", "paper=int8", "author/to/paper=int8", "field=float16"]
        },
    ),
    "links of one of several types": Feature(
        "people",
        ("rgcn", "rgat", "hgt", "own, mean of present", "own, relations apart"),
        variants=OF_LINKS,
        scored=True,
    ),
    "links of several types": Feature(
        "library",
        ("rgat", "rgat with a head", "hgt", "rgcn in blocks"),
        variants=[*OF_LINKS, UNIFORM | _drawn("weighted")],
        scored=True,
    ),
    "links of several types in time": Feature(
        "library in time", ("rgcn", "rgat"), UNIFORM, PICKS, scored=True
    ),
    "labels of several types": Feature(
        "library of labels", ("rgcn", "own, mean of present"), variants=OF_LABELS, scored=True
    ),
    "labels of several types in time": Feature(
        "library of labels in time", ("rgat", "rgcn"), OF_LABELS[0], PICKS
    ),
    # Classes from outside.
    "own sampler": Feature(
        "typed", ("rgcn", "rgat"), _drawn("drop_edge:DropEdge", keep=0.6), whole=OF_SEVERAL_TYPES
    ),
    "own model": Feature("typed", ("shared",)),
    "own loss, schedule and source": Feature(
        "bare",
        ("rgcn",),
        {
            "data": {"features": {"author": "own_parts:Angles"}},
            "train": {
                "loss": "focal_loss:FocalLoss",
                "loss_options": {"gamma": 1.5},
                "schedule": "one_cycle:OneCycle",
                "schedule_options": {"start": 0.5},
            },
        },
    ),
}
# What meets relations that are cut: a feature, which turn of its variants, and a model.
OF_CUT: list[tuple[str, World, int, str]] = [
    ("types", CUT, 0, "rgcn"),
    ("types", CUT, 1, "rgat with a head"),
    ("types", CUT, 0, "hgt, one layer"),
    *(("types", CUT, turn, model) for turn, model in enumerate(IN_PARTS)),
    ("types", CUT_OF_SIX, 0, "rgcn without root weight"),
    ("types", CUT_OF_SIX, 1, "rgcn of bases"),
    ("types, learned rows", CUT, 0, "hgt"),
    ("tables", CUT_OF_SIX, 0, "rgat"),
    ("types, by weight", CUT, 0, "rgcn"),
    ("types, by weight", CUT, 1, "rgat"),
    ("types, with replacement", CUT, 0, "hgt"),
    ("types, with replacement", CUT, 1, "in parts, mean of present"),
]
IS_TYPED = {name: set(feature.models) <= {*TYPED} for name, feature in FEATURES.items()}


@dataclass(frozen=True)
class Case:
    """A feature under an engine, in a world."""

    feature: str
    engine: str
    variant: str
    world: World
    model: str
    sections: Sections

    @property
    def division(self) -> tuple[Any, ...]:
        """The graph, and how it is divided."""
        feature, world = FEATURES[self.feature], self.world
        options = feature.of_relations if self.engine == "raf" else {}
        way = self.engine if self.engine in ("raf", "p3") else world.topology
        if world.topology == "cut":
            way = "cut"
        of_ranks = world.ranks_per_server if way == "replicated" else 1
        return feature.graph, way, world.servers, of_ranks, str((options, feature.division))

    def divide(self, graph: GraphDirectory, out: Path) -> PartitionedGraph:
        """Divide the graph as the engine needs it."""
        feature, (servers, ranks, topology) = FEATURES[self.feature], self.world
        if self.engine == "raf" and graph.schema.predicted != "node":
            return partition_by_relation(graph, out, servers, 3)
        if topology == "cut":
            memory = memory_for_parts(graph)
            return partition_by_relation(graph, out, servers, 2, server_memory=memory)
        if self.engine == "raf":
            options = {"layers": 3} | dict(feature.division) | dict(feature.of_relations)
            divide_graph(graph, out, servers, "meta", **options)
        elif self.engine == "p3":
            options = {"features": "by-dimension"} | dict(feature.division)
            partition_graph(graph, out, servers, "random", **options)
        else:
            options = {"topology": topology} | dict(feature.division)
            if feature.graph == "items" and topology == "replicated" and ranks > 1:
                options |= {"backend": "pymetis", "ranks_per_server": ranks}
            else:
                options |= {"method": "random"}
            partition_graph(graph, out, servers, **options)
        return PartitionedGraph.open(out)

    def values(self, parts: PartitionedGraph, run_dir: Path) -> dict[str, Any]:
        """Return the configuration of a run."""
        feature, world = FEATURES[self.feature], self.world
        model = (ONE_TYPE | TYPED | IN_PARTS)[self.model]
        train = {
            "batch_size": GLOBAL_BATCH // world.size,
            "epochs": 1,
            "iterations_per_epoch": 2,
            "learning_rate": 0.01,
            "weight_decay": 0.001,
            "clip_norm": 1.0,
            "dtype": "float64",
            "seed": 3,
            "evaluate_every": int(feature.scored),
            "record_gradients": [0, 1],
            "run_dir": str(run_dir),
        }
        if feature.few:
            train["batch_size"] = (parts.schema.splits["train"] - 1) // world.size
        values = merged(
            {"data": {"partitioned": str(parts.path)}, "model": model, "train": train},
            {"sampler": {"fanouts": [4, 3, 2]}, "hop": {"merge": "off"}},
            {"learnable": LEARNABLE if IS_TYPED[self.feature] else {}},
            ENGINES[self.engine],
            VARIANTS[self.engine][self.variant],
            feature.sections,
            self.sections,
            {"cluster": {"ranks_per_server": world.ranks_per_server}},
        )
        if self.engine == "neutronstar":
            # A full batch is an epoch.
            values["train"] |= {"epochs": 2, "iterations_per_epoch": 0, "batch_size": 100}
            is_timed = values["sampler"].get("kind") == "temporal"
            values["sampler"] = values["sampler"] | {"fanouts": [-1] * 3} if is_timed else FULL
        for key in ("fanouts", "layer_sizes"):
            if key in values["sampler"]:
                values["sampler"][key] = values["sampler"][key][: model["layers"]]
        if values["sampler"].get("kind") in ("full", "layer"):
            values["sampler"].pop("fanouts", None)
        if values["hop"]["merge"] != "off":
            values["hop"]["merge"] = min(world.size - 1, 1 if values["hop"]["merge"] == 1 else 99)
        return values


def choose() -> list[Case]:
    """Combine every feature with every engine that trains it.

    Every two of a feature, an engine and a world meet as well. What else meets is counted in
    test_conformance.py.
    """
    cases: list[Case] = []
    for engines, typed in ((OF_ONE_TYPE, False), (OF_SEVERAL_TYPES, True)):
        features = {name: FEATURES[name] for name in FEATURES if IS_TYPED[name] == typed}
        chosen: list[tuple[Any, ...]] = pairwise(features, engines, range(len(WORLDS)))
        chosen += itertools.product(("types",) if typed else ("node", "full"), engines, ALONE)
        for name, feature in features.items():
            numbers = itertools.cycle(range(len(WORLDS)))
            chosen += [
                (name, engine, next(numbers), model)
                for engine, model in itertools.product(feature.of_every_model, feature.models)
            ]
        turns = dict.fromkeys(engines, 0)
        for name, engine, world, *model in chosen:
            if engine not in FEATURES[name].refused:
                cases.append(case_of(name, engine, world, turns[engine], *model))
                turns[engine] += 1
    cases += [case_of(name, "raf", world, turn, model) for name, world, turn, model in OF_CUT]
    return cases


def case_of(name: str, engine: str, where: int | World, turn: int, model: str = "") -> Case:
    """Return the case of a turn, which says which variants and models it has."""
    feature, variants = FEATURES[name], [*VARIANTS[engine]]
    world = where
    if isinstance(where, int):
        world = (BY_RELATION if engine == "raf" else WORLDS)[where]
    assert isinstance(world, World)
    if engine in ("p3", "neutronstar") or engine in feature.whole:
        world = world._replace(topology="replicated")
    return Case(
        name,
        engine,
        variants[turn % len(variants)],
        world,
        model or feature.models[turn % len(feature.models)],
        # Not in step with the models.
        feature.variants[(turn + turn // len(feature.models)) % len(feature.variants)],
    )
