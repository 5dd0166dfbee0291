"""Finds data of a graph and settings that have no effect on a run, so that users are told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from hopper.config import Task
from hopper.config.model import EDGE_MODELS
from hopper.engines.request import Request
from hopper.graph.schema import Predicted

_MOST_NAMES: Final = 5
_SPLITS: Final = ("train", "val", "test")
_OF_TASKS: Final = {"weights", "metrics", "selects"}
_READ: Final[Mapping[Predicted, set[str]]] = {
    "node": {"kind"},
    "edge": {"kind", "dim", "decoder", "decoder_options"},
    "link": set(Task.model_fields),
}
"""The keys of ``[task]`` that are read, by what is predicted."""


def describe_unused(request: Request) -> list[str]:
    """Describe data and settings that have no effect on a run, one line for each kind."""
    config, schema, reads = request.config, request.schema, request.reads
    read = {reads.relations[name] for names, _ in reads.layers for name in names}
    edges = {relation: schema.relations[relation] for relation in read}
    reached = {rows.node_type for rows in reads.inputs.values()}
    targets = [*map(str, schema.target_relations)] or [reads.target]
    timed = [target for target in schema.timed if target in read or isinstance(target, str)]
    sampler, models = request.sampler.kind, ", ".join(EDGE_MODELS)
    unread: dict[str, Collection[object]] = {
        f"edge features of {{}}: read with model.edge_features = true, by {models}": [
            relation
            for relation, edge in edges.items()
            if edge.feature_dim is not None and not config.model.edge_features
        ],
        'weights of {}: only sampler.kind = "weighted" reads them': [
            r for r, edge in edges.items() if edge.weighted and not sampler.reads_weights
        ],
        'times of {}: only sampler.kind = "temporal" reads them': (
            [] if sampler.reads_times else timed
        ),
        "relations {}: not read by this model": schema.relations.keys() - read,
        f"node types {{}}: no hop from {', '.join(schema.root_types)} reaches them": (
            schema.node_types.keys() - reached
        ),
        f"labels of {{}}: only {_join_names(targets)} is predicted": (
            {*map(str, schema.labels)} - {*targets}
        ),
    }
    lines = [text.replace("{}", _join_names(n), 1) for text, n in unread.items() if n]
    lines += _describe_task_keys(request)
    wire = config.cluster.feature_wire
    forms = {kind.feature_dtype for kind in schema.feature_tables.values()}
    if wire != "stored" and "float32" not in forms:
        lines.append(f"cluster.feature_wire = {wire!r}: no rows of features are float32")
    if splits := schema.splits.keys() - {*_SPLITS}:
        lines.append(f"splits {_join_names(splits)}: expected train, val and test")
    return [f"not used: {line}" for line in lines]


def _describe_task_keys(request: Request) -> list[str]:
    """Describe the keys of ``[task]`` that do not concern what is predicted."""
    schema, task, lines = request.schema, request.config.task, []
    labels = schema.target_labels
    if labels is None or labels.kind != "tasks":
        alone = sorted(_OF_TASKS & task.model_dump(exclude_defaults=True).keys())
        lines += [f"task.{key}: there are no labels of several tasks" for key in alone]
    read_keys = _READ[schema.predicted] | _OF_TASKS
    unread = task.model_dump(exclude=read_keys, exclude_defaults=True)
    predicted = "nodes" if schema.predicted == "node" else "labels of edges"
    return lines + [f"task.{key}: {predicted} are predicted, not links" for key in unread]


def _join_names(names: Collection[object]) -> str:
    listed = ", ".join(sorted(map(str, names))[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{listed} and {more} more" if more > 0 else listed
