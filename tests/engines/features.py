"""What a run may ask of an engine, as data: models, features, and how engines are varied.

:func:`choose` combines them, for test_conformance.py. No tests of its own.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hopper.config.engines import BASELINES
from hopper.graph import GraphDirectory
from hopper.hetero.divide import divide_graph
from hopper.partition import PartitionedGraph, partition_graph

from .graphs import LEARNABLE, MODELS, memory_for_parts

Sections = Mapping[str, Mapping[str, Any]]
GLOBAL_BATCH = 24
"""roots of an iteration, on any number of ranks: all cases of a training then have its losses"""


def merged(*all_sections: Sections) -> dict[str, Any]:
    """A configuration with the keys of all sections; later ones win."""
    values: dict[str, Any] = {}
    for sections in all_sections:
        for section, keys in sections.items():
            values[section] = values.get(section, {}) | dict(keys)
    return values


def _model(name: str, layers: int, hidden: int, **options: Any) -> dict[str, Any]:
    return {"name": name, "layers": layers, "hidden": hidden} | options


ONE_TYPE: dict[str, dict[str, Any]] = {
    "gcn": _model("gcn", 2, 8, dropout=0.3),
    "sage": _model("sage", 3, 8, dropout=0.3),
    "gat": _model("gat", 2, 4, heads=3, dropout=0.3),
    # Wider than the features, so that these are added up before they are multiplied.
    "wide sage": _model("sage", 2, 12, dropout=0.3),
    "deepgcn": _model("deepgcn", 3, 8, dropout=0.3),
    "film": _model("film", 3, 8, dropout=0.3),
    "pool": _model("sage", 2, 8, aggregator="pool", dropout=0.3),
    "lstm": _model("sage", 2, 8, aggregator="lstm", dropout=0.3),
    "wide gcn": _model("gcn", 2, 12, dropout=0.3),
    "one layer": _model("sage", 1, 8),
    "one deep layer": _model("deepgcn", 1, 8),
}
_APART = MODELS["own, relations apart"]
_SHARED = {"name_options": {"smooth": True}, "dropout": 0.2}
TYPED: dict[str, dict[str, Any]] = MODELS | {
    "hgt, three layers": _model("hgt", 3, 8, heads=2, dropout=0.2),
    "rgcn without root weight": _model("rgcn", 2, 8, root_weight=False),
    "rgat with a head": _model("rgat", 2, 8, heads=2, head=True),
    "own, mean, without root weight": MODELS["own, mean of present"]
    | {"combine": "mean", "root_weight": False},
    "gated": _model("hgnn", 2, 8, aggregate="tests.engines.own_parts:Gated"),
    "rgcn of rows": _model("rgcn", 2, 8, input_weights=False),
    "shared": _model("shared_weights:SharedWeights", 2, 8, **_SHARED),
}
# What a relation's parts on several servers yield is joined.
_PARTS = _APART | {"aggregate": "own_parts:DroppingInParts"}
_SMOOTH = {"aggregate": "own_parts:Smooth", "combine": "mean_of_present"}
IN_PARTS: dict[str, dict[str, Any]] = {
    "in parts": _PARTS,
    "in parts, mean of present": _PARTS | {"combine": "mean_of_present"},
    "in parts, mean": _PARTS | {"combine": "mean"},
    "in parts, not added up": _PARTS | _SMOOTH,
}
ALL_MODELS = ONE_TYPE | TYPED | IN_PARTS
FULL: dict[str, Any] = {"kind": "full"}
CACHE: dict[str, Any] = {"size": "20%", "decline": False}
EDGE_FEATURES: Sections = {"model": {"edge_features": True}}
# The ways in which engines train. A full batch is an epoch.
ENGINES: dict[str, dict[str, Any]] = {
    name: {"train": {"engine": BASELINES.get(name, name)}}
    for name in ("model_centric", "hop", "cooperative", "naive", "p3", "neutronstar", "raf")
} | {"zero_hop in passes": {"train": {"engine": "zero_hop", "micro_batch": 5}}}
# How every engine is varied, from case to case.
VARIANTS: dict[str, dict[str, Sections]] = {
    "model_centric": {
        "model_centric": {},
        "locality": {"train": {"engine": "locality"}},
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
        "hop, parameters too": {"hop": {"migrate": "model"}},
        "hop, one step left": {"hop": {"merge": "all but one"}},
        "hop, merged at random": {
            "hop": {"merge": 1, "merge_selection": "random", "migrate": "model"}
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
BUILT_IN = ("model_centric", "zero_hop in passes", "hop", "cooperative")
OF_ONE_TYPE = (*BUILT_IN, "naive", "p3", "neutronstar")
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


WORLDS = (World(2, 1), World(2, 2), World(3, 1, "partitioned"))
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
    graph: a key of :data:`.graphs.GRAPHS`.
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


def _layers(*sizes: int) -> Sections:
    return {"sampler": {"kind": "layer", "layer_sizes": [*sizes]}}


def _sampled(sections: Sections, graph: str = "items", **more: Any) -> Feature:
    """Ask for a way to draw neighbours, which engines of full batches do not train."""
    refused = {"neutronstar": r"^sampler\.kind: neutronstar trains full batches"}
    return Feature(graph, tuple(ONE_TYPE), sections, refused=refused, **more)


NOT_COOPERATIVE = ("model_centric", "zero_hop in passes", "hop", "naive", "p3", "raf")
NO_LEARNED = {engine: rf"^learnable\.types: {engine} " for engine in ("naive", "p3", "neutronstar")}
NO_INT8 = {"p3": r"^features: by-dimension divides a row's numbers, and int8"}
LINKS: dict[str, dict[str, Any]] = {
    "dot, joint": {"decoder": "dot", "negatives": "joint", "num_negatives": 5},
    "distmult, uniform": {"decoder": "distmult", "negatives": "uniform", "num_negatives": 3},
    "mlp, in batch": {"decoder": "mlp", "negatives": "in_batch", "num_negatives": 4},
    "rotate, by degree": {"decoder": "rotate", "negatives": "degree", "num_negatives": 3}
    | {"corrupt": "tail"},
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
BY_WEIGHT = [_drawn("weighted"), _drawn("weighted", replace=True)]
UNBIASED = [_drawn("weighted", unbiased=True), _drawn("weighted", unbiased=True, replace=True)]
OF_AUTHORS: Sections = {"learnable": {"types": ["author"], "tables": "per_server_table"}}
TABLES: list[Sections] = [
    {"learnable": {"tables": "per_server_table"}},
    {"learnable": {"tables": "per_relation"}},
]
PATHS = [
    ["author/to/paper"],
    ["author/to/paper", "paper/to/author"],
    ["paper/to/paper", "field/to/paper"],
    ["paper/to/paper", "author/to/paper"],
]
TASKS = {"weights": {"value": 0.25}, "metrics": {"topic": ["macro_f1", "accuracy"]}}
FORMS = ["bfloat16", "paper=int8", "author/to/paper=int8", "field=float16"]
FOCAL = {"loss": "focal_loss:FocalLoss", "loss_options": {"gamma": 1.5}}
ONE_CYCLE = {"schedule": "one_cycle:OneCycle", "schedule_options": {"start": 0.5}}
TIMELESS = ("sage", "gat", "wide sage", "film", "pool", "lstm", "one layer")
LEARNING = ("rgcn", "rgat", "hgt", "rgcn in blocks", *tuple(TYPED)[-7:-2])
READS_EDGES = ("rgcn", "rgat", "gated", "hgt")
OF_KNOWN = ("rgcn", "rgat", "hgt", "own, mean of present", "own, relations apart")
FEATURES: dict[str, Feature] = {
    # Of one node type: how neighbours are drawn.
    "node": _sampled({}, scored=True, of_every_model=("cooperative",)),
    "few roots": _sampled({}, few=True),
    "full": Feature(
        "items", tuple(ONE_TYPE), {"sampler": FULL, "train": {"epochs": 2}}, scored=True
    ),
    "labor": _sampled(_drawn("labor")),
    "layer": _sampled(_layers(60, 40, 30), whole=OF_ONE_TYPE),
    # One or two nodes of the whole graph a hop: most frontiers stay empty.
    "empty frontiers": _sampled(_layers(2, 1, 1), whole=OF_ONE_TYPE),
    "by weight": _sampled({}, "nodes", variants=BY_WEIGHT),
    "by weight, unbiased": _sampled({}, "nodes", variants=UNBIASED, whole=NOT_COOPERATIVE),
    "with replacement": _sampled(_drawn("replacement"), "nodes"),
    "in time": Feature("nodes", TIMELESS, variants=PICKS, scored=True),
    # Of one node type: what is read and predicted.
    "features of edges": Feature("nodes", ("sage", "wide sage", "gat", "gcn"), EDGE_FEATURES),
    "int8": Feature(
        "items",
        tuple(ONE_TYPE),
        division={"feature_dtypes": ["int8"]},
        scored=True,
        refused=NO_INT8,
    ),
    "bfloat16": Feature("items", tuple(ONE_TYPE), division={"feature_dtypes": ["bfloat16"]}),
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
    "several tasks": Feature("tasks", ("sage", "gat"), {"task": TASKS}, scored=True),
    "links": Feature("links", ("sage", "gat", "gcn"), variants=OF_LINKS),
    "links in time": Feature("links", ("sage", "gat"), UNIFORM, PICKS, scored=True),
    "labels": Feature("labels", ("sage", "gat", "gcn"), variants=OF_LABELS),
    "labels in time": Feature("labels", ("gat",), OF_LABELS[0], PICKS),
    # Of several node types.
    "types": Feature("typed", tuple(TYPED)[:-2], of_every_model=("cooperative", "raf")),
    "types, few roots": Feature("typed", ("hgt", "rgcn", "own, relations apart"), few=True),
    "types, labor": Feature("bare", ("rgat", "rgcn", "hgt"), _drawn("labor")),
    "types, learned rows": Feature("bare", LEARNING, scored=True),
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
        ({}, TABLES[0]),
        of_relations={"layers": 2, "metapaths": PATHS},
        scored=True,
    ),
    "tables": Feature(
        "bare",
        ("rgcn", "hgt"),
        variants=(*TABLES, TABLES[0] | _drawn("labor")),
        of_relations={"layers": 2},
        scored=True,
    ),
    # Learnable rows stand for one-hot vectors: R-GCN has no matrix in its first layer.
    "rows that are not projected": Feature(
        "learned", ("rgcn of rows",), {"learnable": {"tables": "per_relation", "dim": 0}}
    ),
    "types, by weight": Feature(
        "drawn", ("rgat", "own, mean of present", "rgcn"), variants=BY_WEIGHT, scored=True
    ),
    "types, unbiased": Feature(
        "drawn",
        ("rgcn", "hgt", "rgat"),
        variants=(UNBIASED[0], UNBIASED[1] | OF_AUTHORS),
        whole=NOT_COOPERATIVE,
    ),
    "types, with replacement": Feature(
        "drawn", ("hgt", "rgcn"), _drawn("replacement") | {"learnable": {"types": ["author"]}}
    ),
    "types, in time": Feature(
        "drawn",
        ("rgcn without root weight", "rgat", "hgt, three layers"),
        EDGE_FEATURES,
        PICKS,
        scored=True,
    ),
    "types, features of edges": Feature("drawn", READS_EDGES, EDGE_FEATURES),
    "types, stored forms": Feature(
        "drawn", ("rgcn", "hgt"), EDGE_FEATURES, division={"feature_dtypes": FORMS}
    ),
    "links of one of several types": Feature("people", OF_KNOWN, variants=OF_LINKS, scored=True),
    "links of several types": Feature(
        "library",
        ("rgat", "rgat with a head", "hgt", "rgcn in blocks"),
        variants=[*OF_LINKS, UNIFORM | BY_WEIGHT[0]],
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
        {"data": {"features": {"author": "own_parts:Angles"}}, "train": FOCAL | ONE_CYCLE},
    ),
}
OF_BASELINES = (
    "node",
    "few roots",
    "full",
    "in time",
    "features of edges",
    "int8",
    "links",
    "labels",
)
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
    ("types, in time", CUT, 0, "rgat"),
    ("types, in time", CUT, 1, "rgcn without root weight"),
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
        is_own = self.engine in ("raf", "p3") and world.topology != "cut"
        way = self.engine if is_own else world.topology
        of_ranks = world.ranks_per_server if way == "replicated" else 1
        return feature.graph, way, world.servers, of_ranks, str((options, feature.division))

    def divide(self, graph: GraphDirectory, out: Path) -> PartitionedGraph:
        """Divide the graph as the engine needs it."""
        feature, (servers, ranks, topology) = FEATURES[self.feature], self.world
        if topology == "cut":
            memory = memory_for_parts(graph)
            return divide_graph(graph, out, servers, "meta", layers=2, server_memory=memory)
        if self.engine == "raf":
            options = {"layers": 3} | dict(feature.division) | dict(feature.of_relations)
            return divide_graph(graph, out, servers, "meta", **options)
        if self.engine == "p3":
            options = {"features": "by-dimension"} | dict(feature.division)
            return partition_graph(graph, out, servers, "random", **options)
        options = {"topology": topology} | dict(feature.division)
        if feature.graph == "items" and topology == "replicated" and ranks > 1:
            options |= {"backend": "pymetis"}
        else:
            options |= {"method": "random"}
        return partition_graph(graph, out, servers, **options)

    def values(self, parts: PartitionedGraph, run_dir: Path) -> dict[str, Any]:
        """Return the configuration of a run."""
        feature, world, model = FEATURES[self.feature], self.world, ALL_MODELS[self.model]
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
            {"sampler": {"kind": "node", "fanouts": [4, 3, 2]}, "hop": {"merge": "off"}},
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
        if world.topology == "cut":
            # Features of edges would be refused.
            values["model"]["edge_features"] = False
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

    Their worlds take turns, so that each feature and each engine meets all of them. Baselines meet
    some features.
    """
    cases: list[Case] = []
    for engines, typed in ((BUILT_IN, False), (OF_SEVERAL_TYPES, True)):
        features = {name: FEATURES[name] for name in FEATURES if IS_TYPED[name] == typed}
        chosen: list[tuple[Any, ...]] = [
            (name, engine, (row + column) % len(WORLDS))
            for row, name in enumerate(features)
            for column, engine in enumerate(engines)
        ]
        chosen += itertools.product(("types",) if typed else ("node",), engines, ALONE)
        for name, feature in features.items():
            numbers = itertools.cycle(range(len(WORLDS)))
            chosen += [
                (name, engine, next(numbers), model)
                for engine, model in itertools.product(feature.of_every_model, feature.models)
            ]
        if not typed:
            numbers = itertools.cycle(range(len(WORLDS)))
            of_baselines = itertools.product(OF_ONE_TYPE[len(BUILT_IN) :], OF_BASELINES)
            chosen += [(name, engine, next(numbers)) for engine, name in of_baselines]
        turns = dict.fromkeys(OF_ONE_TYPE + OF_SEVERAL_TYPES, 0)
        for name, engine, world, *model in chosen:
            if engine not in FEATURES[name].refused:
                cases.append(case_of(name, engine, world, turns[engine], *model))
                turns[engine] += 1
    cases += [case_of(name, "raf", world, turn, model) for name, world, turn, model in OF_CUT]
    return cases


def case_of(name: str, engine: str, where: int | World, turn: int = 0, model: str = "") -> Case:
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
