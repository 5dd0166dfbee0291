"""What no engine could train exactly, what would spoil a run, and what would go unread, is told.

All of it is told before a run. The refusals of a feature by an engine are in features.py.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import Request, engines_of
from hopper.engines.checks import check_request
from hopper.engines.training_parts import check_training_parts
from hopper.engines.unused import describe_unused
from hopper.errors import ConfigError, RequestError
from hopper.hetero.divide import divide_graph
from hopper.partition import PartitionedGraph

from .features import EDGE_FEATURES, PATHS, merged
from .graphs import LEARNABLE, MODELS, memory_for_parts

# How graphs are divided: as parts_of() does, with a root relation cut in two, or along metapaths.
DIVISIONS: dict[str, tuple[str, ...]] = {
    "labels": ("library of labels",),
    "columns": ("items", "by-dimension"),
    "partitioned": ("items", "partitioned"),
    "drawn by relation": ("drawn", "by relation"),
}
CUT = {"cut": "typed", "drawn and cut": "drawn"}
ALONG = {
    "along": PATHS,
    "along others": [["author/to/paper"], ["paper/to/paper", "field/to/paper"]],
}
OF_ONE_TYPE = ("items", "nodes", "tasks", "columns", "partitioned")
P3, NAIVE, NEUTRONSTAR = (BASELINES[name] for name in ("p3", "naive", "neutronstar"))
RAF = {"train": {"engine": "raf"}}
LABOR = {"sampler": {"kind": "labor"}}
TIME = {"sampler": {"kind": "temporal"}}
UNBIASED = {"sampler": {"kind": "weighted", "kind_options": {"unbiased": True}}}
NO_WEIGHTS: dict[str, Any] = {"model": {"input_weights": False}}


def paths(*metapaths: list[str]) -> dict[str, Any]:
    return RAF | {"model": {"metapaths": list(metapaths)}}


def own(aggregate: str, combine: str = "sum") -> dict[str, Any]:
    model = MODELS["own, relations apart"] | {"combine": combine}
    return RAF | {"model": model | {"aggregate": f"own_parts:{aggregate}"}}


def trials(*overrides: dict[str, Any]) -> dict[str, Any]:
    trained = {"replicas": "independent"} | ({"trials": list(overrides)} if overrides else {})
    return {"train": {"engine": "hop"}, "hop": trained}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # Engines, and how a graph is divided.
    ("columns", {"train": {"engine": "zero_hop"}}, r"^train.engine: .* engine of your own"),
    ("columns", {"train": {"engine": "auto"}}, r"^train.engine: the features of .* given auto$"),
    ("items", {"train": {"engine": P3}}, r"^train.engine: .* divided by node .* cooperative, "),
    ("partitioned", {"train": {"engine": NEUTRONSTAR}, "sampler": {"kind": "full"}},
     r"is partitioned: .* \(or auto\), given .*:NeutronStar"),
    ("items", {"train": {"engine": NEUTRONSTAR}},
     r'^sampler.kind: .* expected "full", or "temp.* given "node", '),
    *(
        row
        for parts, engine, name in (("columns", P3, "p3"), ("items", NAIVE, "naive"))
        for row in (
            (parts, {"train": {"engine": engine}, "cache": {"policy": "lru", "memory": "device"}},
             rf"^cache.policy: under {name} "),
            (parts, {"train": {"engine": engine}, "learnable": {"types": ["item"]}},
             rf"^learnable.types: {name} divides the first layer"),
            (parts, {"train": {"engine": engine, "micro_batch": 3}},
             rf"^train.micro_batch: {name} trains a mini-batch in one pass"),
            (parts, {"train": {"engine": engine}, "model": {"name": "own_parts:Prepared"}},
             rf"^train.engine: {name} .* Prepared prepares them"),
            (parts, {"train": {"engine": engine}, "model": {"name": "own_parts:Other"}},
             rf"^train.engine: {name} .* says anew how it reads"),
        )
    ),
    ("items", {"train": {"engine": "hop"}, "hop": {"merge": 2}}, r"hop\.merge: expected at most 1"),
    # Classes and options from outside.
    ("items", {"train": {"engine": "drop_edge:DropEdge"}},
     "train.engine: drop_edge:DropEdge: expected a subclass of hopper.engines.engine.Engine"),
    ("items", {"train": {"engine": "hop", "engine_options": {"speed": 2}}},
     "train.engine_options.speed: hop takes"),
    ("items", {"sampler": {"kind": "nearest_rows:NearestRows"}},
     "sampler.kind: nearest_rows:NearestRows: expected a subclass of .*NeighborSampler"),
    ("items", {"sampler": {"kind": "drop_edge:DropEdge", "kind_options": {"keep": 2}}},
     "sampler.kind_options.keep: Input should be less than or equal to 1"),
    ("items", {"model": {"name": "nowhere:Model"}},
     "model.name: nowhere:Model: module 'nowhere' cannot"),
    ("items", {"model": {"name_options": {"a": 1}}}, "name_options: those of a class of one's own"),
    # What samplers need.
    ("partitioned", {"sampler": {"kind": "layer", "layer_sizes": [30, 20]}},
     "'layer' weighs nodes by all edges"),
    ("partitioned", {"train": {"engine": "zero_hop"}, "sampler": {"kind": "own_parts:OwnDraw"}},
     r'sampler.kind: .* given "own_parts:OwnDraw" with zero_hop'),
    ("bare", {"sampler": {"kind": "layer", "layer_sizes": [4, 4]}},
     r"sampler\.kind: 'layer' .* expected node or labor"),
    ("items", {"sampler": {"kind": "weighted"}},
     "draws by weights of edges, and the model reads no"),
    ("nodes", TIME | {"model": {"name": "gcn"}}, "gcn weighs neighbours by their out-degrees"),
    ("people", TIME, "edges of person/knows/person.* have no times in"),
    ("cut", RAF | LABOR, "sampler.kind: 'labor' reads all in-edges .* a part of paper/to/paper"),
    ("drawn and cut", RAF | UNBIASED, r"sampler\.kind: 'weighted' with unbiased = true"),
    ("drawn and cut", RAF | EDGE_FEATURES,
     r"^model\.edge_features: .* splits the edges of a root relation over servers"),
    # What models read.
    ("items", EDGE_FEATURES, r"model\.edge_features: the model reads no relation"),
    ("nodes", {"model": {"name": "deepgcn", "edge_features": True}},
     r"model\.edge_features: deepgcn reads none"),
    ("nodes", {"model": {"aggregator": "pool", "edge_features": True}},
     r'model\.edge_features: sage with aggregator = "pool" reads none'),
    ("cut", RAF | {"model": MODELS["own, mean of present"]},
     "model.aggregate: GatedAggregation needs all of a node's neighbours"),
    ("cut", own("Bounded"), "model.aggregate: Bounded needs all of a node's neighbours"),
    ("cut", own("DroppingInParts", "own_parts:BoundedSum"),
     "model.combine: BoundedSum makes partials of whole relations"),
    ("along", RAF, r"no server aggregates .*field/to/paper.* for the roots"),
    # Another server has the relation, but not where it is followed.
    ("along others", paths(["author/to/paper"], ["paper/to/paper", "author/to/paper"]),
     r"server \d lacks author/to/paper, which the model"),
    ("along", paths(*PATHS[:1]), r"server [01] holds .*, which no metapath begins with"),
    ("along", paths(["author/to/paper", "field/to/paper"]),
     r"metapath 'author/to/paper,field.*': .* ends in"),
    ("items", {"model": {"name": "gcn", "metapaths": [["cites"]]}},
     "only typed models follow them"),
    ("items", {"train": {"autocast": "bfloat16", "dtype": "float64"}},
     "autocast: 'bfloat16' takes the place of float32"),
    # Learnable rows.
    ("items", {"learnable": {"types": ["nobody"]}},
     "learnable.types: expected node types that the model reads"),
    ("bare", NO_WEIGHTS, r"model\.input_weights: .* nobody, paper with features"),
    ("learned", NO_WEIGHTS, r"learnable\.dim: .* expected 8 or 0, given 6"),
    ("bare", merged(NO_WEIGHTS, {"model": {"name": "rgat"}}),
     "input_weights: an option of rgcn, not of 'rgat'"),
    ("bare", merged(NO_WEIGHTS, {"model": {"layers": 1}, "sampler": {"fanouts": [3]}}),
     "input_weights: the only layer's rows are the logits"),
    ("bare", trials(), "replicas: node type 'author', 'field' has"),
    # Tasks.
    ("tasks", {"task": {"weights": {"topics": 1.0}}},
     r"task\.weights: expected tasks topic, value, keywords"),
    ("tasks", {"task": {"metrics": {"value": ["accuracy"]}}},
     r"task\.metrics\.value: accuracy is for"),
    ("tasks", {"task": {"selects": "age"}}, r"task\.selects: expected one of topic"),
    ("tasks", {"train": {"loss": "cross_entropy"}},
     r"train\.loss: the graph has labels of several"),
    ("tasks", {"train": {"more_metrics": ["mae"]}},
     r"train\.more_metrics: the graph has labels"),
    ("items", {"task": {"kind": "link"}}, "imported with --target RELATION"),
    ("items", {"task": {"decoder": "mlp"}} | trials({"task.decoder": "mlp"}),
     r"hop\.trials: task\.decoder: the model predicts"),
    *(
        row
        for parts in ("library", "labels")
        for row in (
            (parts, RAF, "^train.engine: "),
            (parts, {"train": {"engine": NEUTRONSTAR}},
             "^train.engine: neutronstar knows no node types"),
        )
    ),
    ("library", LABOR, "^sampler.kind: links are predicted"),
    ("library", {"task": {"kind": "node"}}, "^task.kind: the graph's target is"),
    ("library", {"model": {"name": "nars", "layers": 1}, "sampler": {"fanouts": [3]}},
     "^model.name: links are predicted"),
    ("labels", {"task": {"kind": "link"}}, "^task.kind: the graph's target is reader/borrows/book"),
    ("labels", {"task": {"decoder": "distmult"}}, "^task.decoder: expected mlp, bilinear or"),
    ("labels", {"task": {"decoder": "own_parts:OneForAll"}}, "^task.decoder: own_parts:OneForAll"),
    ("labels", {"train": {"metric": "mrr"}}, "^train.metric: expected accuracy"),
    # Losses, metrics, optimisers and schedules.
    *(
        ("items", {"train": train}, message)
        for train, message in (
            ({"loss": "huber"}, "train.loss: expected auto, cross_entropy, binary_cross_entropy, "),
            ({"optimizer": "lion"},
             "train.optimizer: expected adam, adamw, sgd or package.module:Class"),
            ({"loggers": ["csv"]}, "train.loggers: expected tensorboard, mlflow, wandb or package"),
            ({"loggers": ["a:B"], "loggers_options": [{}, {}]},
             "loggers_options: expected one table"),
            ({"loss": "squared_error"},
             "train.loss: squared_error is for labels of kind float; the "),
            ({"metric": "rmse"},
             "train.metric: rmse is for labels of kind float; the graph's are of "),
            ({"loss": "own_parts:MeanLoss"}, "that of a root depends on the others"),
            ({"loss": "own_parts:SummedLoss"},
             "SummedLoss: expected one loss per root, of shapes"),
            ({"loss": "own_parts:CutLoss"}, "expected a gradient of the logits"),
            ({"metric": "own_parts:Share"}, "expected sums that can be added over ranks"),
            ({"optimizer": "own_parts:Normed"}, "expected an update of each number by itself"),
            ({"schedule": "own_parts:Growing"},
             "expected a finite number, 0 or more, at update 2"),
            ({"schedule": "step"}, "train.schedule_options.step_size: missing; step needs it"),
            ({"schedule": "warmup",
              "schedule_options": {"warmup_steps": 1, "warmup_fraction": 0.5}},
             r"train.schedule: warmup cannot be made \(ValueError: expected warmup_steps or"),
            ({"optimizer_options": {"betas": [0.9, 1.0]}},
             "optimizer_options.betas.1: Input should be less than 1"),
        )
    ),
]  # fmt: skip
# What is near these, and is trained.
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("partitioned", {"sampler": {"kind": "own_parts:OwnDraw"}, "train": {"engine": "cooperative"}}),
    ("partitioned", {"sampler": {"kind": "own_parts:OwnDraw"}, "train": {"engine": "auto"}}),
    ("items", {"train": {"engine": "auto"}, "hop": {"merge": 2}}),
    ("cut", RAF),
    ("along", paths(*PATHS)),
    ("along", paths(*PATHS[:3])),
]
OF_EDGES = "times of author/to/paper, field/to/paper, nobody/to/paper, paper"
UNREAD: list[tuple[str, dict[str, Any], list[str]]] = [
    ("nodes", {"sampler": {"kind": "node"}},
     [
         "edge features of node/edge/node: read with model.edge_features = true, by gcn, sage, "
         "gat, rgcn, rgat, hgt, hgnn",
         'times of node: only sampler.kind = "temporal" reads them',
         'weights of node/edge/node: only sampler.kind = "weighted" reads them',
     ]),
    ("nodes", EDGE_FEATURES | TIME, ["weights of node/edge/node: only sampler.kind"]),
    ("drawn", EDGE_FEATURES | UNBIASED, [f'{OF_EDGES}: only sampler.kind = "temporal" reads them']),
    ("items", {"task": {"decoder": "mlp"}}, ["task.decoder: nodes are predicted, not links"]),
    ("labels",
     {"task": {"decoder": "own_parts:Sum", "num_negatives": 3}, "sampler": {"kind": "weighted"}},
     ["task.num_negatives: labels of edges are predicted, not links"]),
    ("tasks", {"task": {"selects": "value"}}, []),
]  # fmt: skip


@pytest.fixture(scope="module")
def request_of(graph_of, parts_of, tmp_path_factory) -> Callable[[str, dict[str, Any]], Request]:
    """Make the request of a division and sections. Graphs are divided once."""
    folder = tmp_path_factory.mktemp("refused")

    @cache
    def divided(name: str) -> PartitionedGraph:
        if name in CUT:
            graph = graph_of(CUT[name])
            options: dict[str, Any] = {"server_memory": memory_for_parts(graph)}
            return divide_graph(graph, folder / name, 4, "meta", layers=2, **options)
        if name in ALONG:
            options = {"layers": 2, "metapaths": ALONG[name]}
            return divide_graph(graph_of("bare"), folder / name, 2, "meta", **options)
        return PartitionedGraph.open(parts_of(*DIVISIONS.get(name, (name,))))

    def make(division: str, sections: dict[str, Any]) -> Request:
        is_typed = division not in OF_ONE_TYPE
        model = {"name": "rgcn" if is_typed else "sage", "layers": 2, "hidden": 8}
        values = {
            "data": {"partitioned": str(divided(division).path)},
            "model": model,
            "sampler": {"fanouts": [3, 2]},
            "learnable": LEARNABLE if is_typed else {},
        }
        values = merged(values, sections)
        if "layer_sizes" in values["sampler"]:
            del values["sampler"]["fanouts"]
        return Request(make_config(values), divided(division))

    return make


def check(make: Callable[[], Request]) -> Request:
    """Check a request as a run does, before anything is read."""
    asked = make()
    check_request(asked)
    check_training_parts(asked.config, asked.schema)
    return asked


@pytest.mark.parametrize(("division", "sections", "message"), REFUSED)
def test_what_cannot_be_trained_is_refused(division, sections, message, request_of):
    with pytest.raises((ConfigError, RequestError), match=message) as raised:
        check(partial(request_of, division, sections))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("division", "sections"), ACCEPTED)
def test_what_is_near_is_accepted(division, sections, request_of):
    check(partial(request_of, division, sections))


@pytest.mark.parametrize(("division", "sections", "expected"), UNREAD)
def test_what_goes_unread_is_told(division, sections, expected, request_of):
    told = describe_unused(check(partial(request_of, division, sections)))
    assert len(told) == len(expected), told
    for line, start in zip(sorted(told), expected, strict=True):
        assert line.startswith(f"not used: {start}"), line


@pytest.mark.parametrize(
    ("division", "sections", "kind"),
    [
        ("nodes", {}, "temporal"),
        ("drawn", {}, "temporal"),
        ("nodes", {"model": {"name": "gcn"}}, "node"),
        ("nodes", {"sampler": {"kind": "labor"}}, "labor"),
        ("items", {}, "node"),
    ],
)
def test_draws_keep_to_times_where_there_are_some(division, sections, kind, request_of):
    assert request_of(division, sections).config.sampler.kind == kind


@pytest.mark.parametrize(
    ("division", "sections", "engines"),
    [
        ("drawn", TIME, {"zero_hop", "hop", "model_centric", "cooperative"}),
        ("drawn by relation", TIME, {"raf"}),
        ("partitioned", {}, {"zero_hop", "hop", "model_centric", "cooperative"}),
    ],
)
def test_auto_chooses_among_those_that_can(division, sections, engines, request_of):
    asked = check(partial(request_of, division, merged(sections, {"train": {"engine": "auto"}})))
    assert {engine.spec.name for engine in engines_of(asked)} == engines
