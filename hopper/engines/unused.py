"""What a graph brings and a run does not use, so that nothing is ignored in silence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from hopper.config.model import EDGE_MODELS
from hopper.config.sections import Task
from hopper.engines.request import Request
from hopper.graph.schema import Predicted
from hopper.micrograph.samplers import find_sampler

_MOST_NAMES: Final = 5
SPLITS: Final = ("train", "val", "test")
_OF_TASKS: Final = {"weights", "metrics", "selects"}
_READ: Final[Mapping[Predicted, set[str]]] = {
    "node": {"kind"},
    "edge": {"kind", "dim", "decoder", "decoder_options"},
    "link": set(Task.model_fields),
}
"""keys of ``[task]``"""


def unused(request: Request) -> list[str]:
    """A line for each kind of what is there and has no effect on a run."""
    schema, reads = request.schema, request.reads
    lines = []
    relations = {reads.relations[each] for read, _ in reads.layers for each in read}
    edge_features = [
        str(each) for each in relations if schema.relations[each].feature_dim is not None
    ]
    if edge_features and not request.config.model.edge_features:
        lines.append(
            f"edge features of {_listed(edge_features)}: read with model.edge_features = true, by "
            f"{', '.join(EDGE_MODELS)}"
        )
    weighted = [str(each) for each in relations if schema.relations[each].weighted]
    own = request.config.sampler
    if weighted and not find_sampler(own.kind, own.kind_options).kind.reads_weights:
        lines.append(f'weights of {_listed(weighted)}: only sampler.kind = "weighted" reads them')
    timed = [str(e) for e in schema.timed if e in relations or isinstance(e, str)]
    if timed and not request.reads_times:
        lines.append(f'times of {_listed(timed)}: only sampler.kind = "temporal" reads them')
    not_met = [str(each) for each in schema.relations if each not in relations]
    if not_met:
        lines.append(f"relations {_listed(not_met)}: not read by this model")
    reached = {rows.node_type for rows in reads.inputs.values()}
    types = [each for each in schema.node_types if each not in reached]
    if types:
        roots = ", ".join(schema.root_types)
        lines.append(f"node types {_listed(types)}: no hop from {roots} reaches them")
    targets = [*map(str, schema.target_relations)] or [reads.target]
    labels = [str(each) for each in schema.labels if str(each) not in targets]
    if labels:
        lines.append(f"labels of {_listed(labels)}: only {_listed(targets)} is predicted")
    read = _READ[schema.predicted] | _OF_TASKS
    task = request.config.task.model_dump(exclude=read, exclude_defaults=True)
    told = "nodes" if schema.predicted == "node" else "labels of edges"
    labels_of = schema.target_labels
    if labels_of is None or labels_of.kind != "tasks":
        alone = sorted(_OF_TASKS & request.config.task.model_dump(exclude_defaults=True).keys())
        lines += [f"task.{key}: there are no labels of several tasks" for key in alone]
    lines += [f"task.{key}: {told} are predicted, not links" for key in task]
    wire = request.config.cluster.feature_wire
    forms = {kind.feature_dtype for kind in schema.node_types.values()}
    forms |= {kind.feature_dtype for kind in schema.relations.values()}
    if wire != "stored" and "float32" not in forms:
        lines.append(f"cluster.feature_wire = {wire!r}: no rows of features are float32")
    splits = [each for each in schema.splits if each not in SPLITS]
    if splits:
        lines.append(f"splits {_listed(splits)}: expected train, val and test")
    return [f"not used: {line}" for line in lines]


def _listed(names: Collection[str]) -> str:
    some = ", ".join(sorted(names)[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{some} and {more} more" if more > 0 else some
