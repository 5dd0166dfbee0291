"""From a configuration to what it names: loss, metric, optimiser, schedule of learning rates."""

from __future__ import annotations

import torch

from hopper.config import Config
from hopper.engines.learning_rate import SCHEDULES, LearningRateSchedule, Pace
from hopper.engines.optimizer import RULES, Optimizer, UpdateRule, check_rule
from hopper.errors import ConfigError
from hopper.graph.schema import GraphSchema, TargetKind
from hopper.migrate.packed_model import PackedModel
from hopper.models import Objective
from hopper.models.link_losses import LINK_LOSSES
from hopper.models.link_metrics import LINK_METRICS
from hopper.models.losses import DEFAULT_LOSSES, LOSSES, Loss, check_loss
from hopper.models.metrics import (
    DEFAULT_METRICS,
    METRICS,
    AnyMetric,
    Metric,
    check_metric,
)
from hopper.models.tasks_objective import TaskPart, TasksObjective
from hopper.plug_ins import PlugIn, find_plug_in
from hopper.tasks import find_target, make_decoder


def make_objective(config: Config, schema: GraphSchema) -> Objective:
    """Loss and metrics of a configuration, for the graph's labels.

    Raises
    ------
    ConfigError: one of them cannot be found or made, or is for other labels; names the key.
    """
    target = find_target(config, schema)
    if target.kind == "tasks":
        return _make_tasks_objective(config, schema)
    loss = _find_loss(config, target.kind).make(classes=target.classes)
    metrics = _find_metrics(config, target.kind)
    return Objective(target.kind, loss, [each.make(classes=target.classes) for each in metrics])


def _make_tasks_objective(config: Config, schema: GraphSchema) -> TasksObjective:
    """That of several tasks: of each its default loss, and the metric that is asked for."""
    labels, train, asked = schema.target_labels, config.train, config.task
    assert labels is not None
    places = labels.task_slices()
    for key, given in (("weights", asked.weights), ("metrics", asked.metrics)):
        for name in given:
            if name not in places:
                raise ConfigError(f"task.{key}: expected tasks {', '.join(places)}; got {name!r}")
    for key in ("loss", "metric"):
        if getattr(train, key) != "auto":
            raise ConfigError(
                f'train.{key}: the graph has labels of several tasks; expected "auto", got '
                f'"{getattr(train, key)}"; task.weights and task.metrics are by task'
            )
    if train.more_metrics:
        raise ConfigError(
            "train.more_metrics: the graph has labels of several tasks; expected none; "
            "task.metrics are by task"
        )
    parts = []
    for name, (own, logits, columns) in places.items():
        loss = LOSSES[DEFAULT_LOSSES[own.kind]](classes=own.classes)
        key = f"task.metrics.{name}"
        metrics = [
            _for_labels(find_plug_in(key, each, Metric, METRICS, {}, ["classes"]), own.kind)
            for each in asked.metrics.get(name, [DEFAULT_METRICS[own.kind]])
        ]
        objective = Objective(own.kind, loss, [e.make(classes=own.classes) for e in metrics])
        parts.append(TaskPart(name, objective, logits, columns, asked.weights.get(name, 1.0)))
    if asked.selects:
        if asked.selects not in places:
            raise ConfigError(
                f"task.selects: expected one of {', '.join(places)}; got {asked.selects!r}"
            )
        parts.sort(key=lambda each: each.name != asked.selects)
    return TasksObjective(parts)


def make_optimizer(config: Config, packed: PackedModel, iterations: int) -> Optimizer:
    """The optimiser of a configuration's dense parameters.

    Parameters
    ----------
    iterations: of an epoch; schedules depend on their number in all.

    Raises
    ------
    ConfigError: it, or the schedule, cannot be found or made; names the key.
    """
    train = config.train
    rule = _find_rule(config).make(parameters=packed.parameters, weight_decay=train.weight_decay)
    pace = make_pace(config, iterations)
    return Optimizer(packed, rule, learning_rate=train.learning_rate, pace=pace)


def make_pace(config: Config, iterations: int) -> Pace:
    """The schedule of learning rates over a run; parameters and errors as of
    :func:`make_optimizer`."""
    return Pace(_find_schedule(config).make(), config.train.epochs, iterations)


def check_training_parts(config: Config, schema: GraphSchema, iterations: int = 1) -> None:
    """Find what a configuration names, make it, and try it on a few numbers.

    Parameters
    ----------
    iterations: of an epoch, where that is known.

    Raises
    ------
    ConfigError: one line that names the key, what was expected and what came.
    """
    target, train = find_target(config, schema), config.train
    if target.has_decoder:
        make_decoder(config, schema, target)
    if target.kind == "tasks":
        _make_tasks_objective(config, schema)
    else:
        _check_objective(config, target.kind, target.classes)
    make_pace(config, iterations).check()
    rule, dtype = _find_rule(config), getattr(torch, train.dtype)
    first, second = (
        rule.make(parameters=torch.zeros(size, dtype=dtype), weight_decay=train.weight_decay)
        for size in (4, 2)
    )
    check_rule(rule.name, (first, second), dtype)


def _check_objective(config: Config, kind: TargetKind, classes: int) -> None:
    loss, metrics = _find_loss(config, kind), _find_metrics(config, kind)
    check_loss(loss.key, loss.name, loss.make(classes=classes), kind, classes)
    names: list[str] = []
    for each in metrics:
        metric = each.make(classes=classes)
        check_metric(each.key, each.name, metric, kind, classes)
        if metric.name in names:
            raise ConfigError(
                f"{each.key}: expected metrics of other names, got {metric.name!r} twice"
            )
        names.append(metric.name)


def _find_loss(config: Config, kind: TargetKind) -> PlugIn[Loss]:
    train, built_ins = config.train, LINK_LOSSES if kind == "link" else LOSSES
    name = DEFAULT_LOSSES[kind] if train.loss == "auto" else train.loss
    found = find_plug_in("train.loss", name, Loss, built_ins, train.loss_options, ["classes"])
    return _for_labels(found, kind)


def _find_metrics(config: Config, kind: TargetKind) -> list[PlugIn[AnyMetric]]:
    """The one that selects the best model first."""
    train, built_ins = config.train, LINK_METRICS if kind == "link" else METRICS
    name = DEFAULT_METRICS[kind] if train.metric == "auto" else train.metric
    asked = [("train.metric", name, train.metric_options)]
    asked += [("train.more_metrics", each, {}) for each in train.more_metrics]
    return [
        _for_labels(find_plug_in(key, each, Metric, built_ins, options, ["classes"]), kind)
        for key, each, options in asked
    ]


def _for_labels(found: PlugIn, kind: TargetKind) -> PlugIn:
    """The same, if it is for labels of that kind, or for links."""
    kinds = tuple(found.kind.label_kinds)
    if kind not in kinds:
        raise ConfigError(
            f"{found.key}: {found.name} is for labels of kind {' or '.join(map(str, kinds))}; the "
            f"graph's are of kind {kind}"
        )
    return found


def _find_rule(config: Config) -> PlugIn[UpdateRule]:
    train = config.train
    given = ["parameters", "weight_decay"]
    return find_plug_in(
        "train.optimizer", train.optimizer, UpdateRule, RULES, train.optimizer_options, given
    )


def _find_schedule(config: Config) -> PlugIn[LearningRateSchedule]:
    train = config.train
    return find_plug_in(
        "train.schedule", train.schedule, LearningRateSchedule, SCHEDULES, train.schedule_options
    )
