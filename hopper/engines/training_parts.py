"""Makes the parts that a configuration names: loss, metrics, optimiser, learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hopper.config import Config
from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.engines.learning_rate import SCHEDULES, LearningRateSchedule, LRScheduler
from hopper.engines.optimizer import RULES, Optimizer, UpdateRule, check_rule
from hopper.errors import ConfigError
from hopper.graph.schema import GraphSchema, TargetKind
from hopper.migrate.flat_model import FlatModel
from hopper.models import Objective
from hopper.models.losses import DEFAULT_LOSSES, LINK_LOSSES, LOSSES, Loss, check_loss
from hopper.models.metrics import (
    DEFAULT_METRICS,
    LINK_METRICS,
    METRICS,
    AnyMetric,
    Metric,
    check_metric,
)
from hopper.models.tasks_objective import TaskPart, TasksObjective
from hopper.tasks import find_target, make_decoder
from hopper.tasks.negatives import find_negatives


def make_objective(config: Config, schema: GraphSchema) -> Objective:
    """Make the loss and the metrics of a configuration, for the graph's labels."""
    target = find_target(config, schema)
    if target.kind == "tasks":
        return _make_tasks_objective(config, schema)
    loss = _find_loss(config, target.kind).make(classes=target.classes)
    metrics = _find_metrics(config, target.kind)
    return Objective(target.kind, loss, [metric.make(classes=target.classes) for metric in metrics])


def _make_tasks_objective(config: Config, schema: GraphSchema) -> TasksObjective:
    """Make the objective of several tasks, with each task's default loss and chosen metrics."""
    labels, train, settings = schema.target_labels, config.train, config.task
    assert labels is not None
    tasks, selects = labels.task_slices(), [settings.selects] if settings.selects else []
    keys: list[Iterable[str]] = [settings.weights, settings.metrics, selects]
    for key, names in zip(("weights", "metrics", "selects"), keys, strict=True):
        for name in names:
            if name not in tasks:
                kind = "one of" if key == "selects" else "tasks"
                raise ConfigError(f"task.{key}: expected {kind} {', '.join(tasks)}; got {name!r}")
    for key, expected in (("loss", "auto"), ("metric", "auto"), ("more_metrics", [])):
        if getattr(train, key) != expected:
            raise ConfigError(
                f"train.{key}: the graph has labels of several tasks; expected {expected!r}, got "
                f"{getattr(train, key)!r}; task.weights and task.metrics are by task"
            )
    parts = []
    for name, (task, logits, columns) in tasks.items():
        loss = LOSSES[DEFAULT_LOSSES[task.kind]](classes=task.classes)
        key = f"task.metrics.{name}"
        metrics = [
            _for_labels(find_plug_in(key, metric, Metric, METRICS, {}, ["classes"]), task.kind)
            for metric in settings.metrics.get(name, [DEFAULT_METRICS[task.kind]])
        ]
        objective = Objective(task.kind, loss, [m.make(classes=task.classes) for m in metrics])
        parts.append(TaskPart(name, objective, logits, columns, settings.weights.get(name, 1.0)))
    if selects:
        parts.sort(key=lambda part: part.name != settings.selects)
    return TasksObjective(parts)


def make_optimizer(config: Config, packed: FlatModel, iterations: int) -> Optimizer:
    """Make the optimiser of a configuration's dense parameters, for epochs of some iterations."""
    rule, scheduler = _make_rule(config, packed.parameters), _make_scheduler(config, iterations)
    return Optimizer(packed, rule, learning_rate=config.train.learning_rate, scheduler=scheduler)


def check_training_parts(config: Config, schema: GraphSchema, iterations: int = 1) -> None:
    """Make every part that a configuration names, and try it on a few numbers."""
    target = find_target(config, schema)
    if target.has_decoder:
        make_decoder(config, schema, target)
    find_negatives(config.task)
    if target.kind == "tasks":
        _make_tasks_objective(config, schema)
    else:
        _check_objective(config, target.kind, target.classes)
    _make_scheduler(config, iterations).check()
    dtype = getattr(torch, config.train.dtype)
    check_rule(config.train.optimizer, partial(_make_rule, config), dtype)


def _check_objective(config: Config, kind: TargetKind, classes: int) -> None:
    loss, names = _find_loss(config, kind), list[str]()
    check_loss(loss.key, loss.name, loss.make(classes=classes), kind, classes)
    for plug_in in _find_metrics(config, kind):
        metric = plug_in.make(classes=classes)
        check_metric(plug_in.key, plug_in.name, metric, kind, classes)
        if metric.name in names:
            raise ConfigError(
                f"{plug_in.key}: expected metrics of other names, got {metric.name!r} twice"
            )
        names.append(metric.name)


def _find_loss(config: Config, kind: TargetKind) -> PlugIn[Loss]:
    train, built_ins = config.train, LINK_LOSSES if kind == "link" else LOSSES
    name = DEFAULT_LOSSES[kind] if train.loss == "auto" else train.loss
    plug_in = find_plug_in("train.loss", name, Loss, built_ins, train.loss_options, ["classes"])
    return _for_labels(plug_in, kind)


def _find_metrics(config: Config, kind: TargetKind) -> list[PlugIn[AnyMetric]]:
    """Find all metrics. The first one selects the best model."""
    train, built_ins = config.train, LINK_METRICS if kind == "link" else METRICS
    name = DEFAULT_METRICS[kind] if train.metric == "auto" else train.metric
    settings = [("train.metric", name, train.metric_options)]
    settings += [("train.more_metrics", metric, {}) for metric in train.more_metrics]
    return [
        _for_labels(find_plug_in(key, metric, Metric, built_ins, options, ["classes"]), kind)
        for key, metric, options in settings
    ]


def _for_labels(plug_in: PlugIn[Any], kind: TargetKind) -> PlugIn[Any]:
    """Return a loss or a metric if it is for labels of a kind; otherwise raise ConfigError."""
    kinds = tuple(plug_in.kind.label_kinds)
    if kind not in kinds:
        raise ConfigError(
            f"{plug_in.key}: {plug_in.name} is for labels of kind {' or '.join(map(str, kinds))}; "
            f"the graph's are of kind {kind}"
        )
    return plug_in


def _make_rule(config: Config, parameters: Tensor) -> UpdateRule:
    train = config.train
    given = {"parameters": parameters, "weight_decay": train.weight_decay}
    plug_in: PlugIn[UpdateRule] = find_plug_in(
        "train.optimizer", train.optimizer, UpdateRule, RULES, train.optimizer_options, [*given]
    )
    return plug_in.make(**given)


def _make_scheduler(config: Config, iterations: int) -> LRScheduler:
    train, protocol = config.train, LearningRateSchedule
    plug_in: PlugIn[LearningRateSchedule] = find_plug_in(
        "train.schedule", train.schedule, protocol, SCHEDULES, train.schedule_options
    )
    return LRScheduler(plug_in.make(), train.epochs, iterations)
