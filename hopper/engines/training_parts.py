"""Makes the parts that a configuration names: loss, metrics, optimiser, learning-rate schedule."""

from __future__ import annotations

import torch

from hopper.config import Config
from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.engines.learning_rate import SCHEDULES, LearningRateSchedule, LRScheduler
from hopper.engines.optimizer import RULES, Optimizer, UpdateRule, check_rule
from hopper.errors import ConfigError
from hopper.graph.schema import GraphSchema, TargetKind
from hopper.migrate.flat_model import FlatModel
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
    tasks = labels.task_slices()
    for key, by_task in (("weights", settings.weights), ("metrics", settings.metrics)):
        for name in by_task:
            if name not in tasks:
                raise ConfigError(f"task.{key}: expected tasks {', '.join(tasks)}; got {name!r}")
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
    for name, (task, logits, columns) in tasks.items():
        loss = LOSSES[DEFAULT_LOSSES[task.kind]](classes=task.classes)
        key = f"task.metrics.{name}"
        metrics = [
            _for_labels(find_plug_in(key, metric, Metric, METRICS, {}, ["classes"]), task.kind)
            for metric in settings.metrics.get(name, [DEFAULT_METRICS[task.kind]])
        ]
        objective = Objective(task.kind, loss, [m.make(classes=task.classes) for m in metrics])
        parts.append(TaskPart(name, objective, logits, columns, settings.weights.get(name, 1.0)))
    if settings.selects:
        if settings.selects not in tasks:
            raise ConfigError(
                f"task.selects: expected one of {', '.join(tasks)}; got {settings.selects!r}"
            )
        parts.sort(key=lambda part: part.name != settings.selects)
    return TasksObjective(parts)


def make_optimizer(config: Config, packed: FlatModel, iterations: int) -> Optimizer:
    """Make the optimiser of a configuration's dense parameters, for epochs of some iterations."""
    train = config.train
    rule = _find_rule(config).make(parameters=packed.parameters, weight_decay=train.weight_decay)
    scheduler = make_scheduler(config, iterations)
    return Optimizer(packed, rule, learning_rate=train.learning_rate, scheduler=scheduler)


def make_scheduler(config: Config, iterations: int) -> LRScheduler:
    """Make the schedule of learning rates of a run."""
    return LRScheduler(_find_schedule(config).make(), config.train.epochs, iterations)


def check_training_parts(config: Config, schema: GraphSchema, iterations: int = 1) -> None:
    """Make every part that a configuration names, and try it on a few numbers."""
    target, train = find_target(config, schema), config.train
    if target.has_decoder:
        make_decoder(config, schema, target)
    find_negatives(config.task)
    if target.kind == "tasks":
        _make_tasks_objective(config, schema)
    else:
        _check_objective(config, target.kind, target.classes)
    make_scheduler(config, iterations).check()
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
    for plug_in in metrics:
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


def _for_labels(plug_in: PlugIn, kind: TargetKind) -> PlugIn:
    """Return a loss or a metric if it is for labels of a kind; otherwise raise ConfigError."""
    kinds = tuple(plug_in.kind.label_kinds)
    if kind not in kinds:
        raise ConfigError(
            f"{plug_in.key}: {plug_in.name} is for labels of kind {' or '.join(map(str, kinds))}; "
            f"the graph's are of kind {kind}"
        )
    return plug_in


def _find_rule(config: Config) -> PlugIn[UpdateRule]:
    train = config.train
    arguments = ["parameters", "weight_decay"]
    return find_plug_in(
        "train.optimizer", train.optimizer, UpdateRule, RULES, train.optimizer_options, arguments
    )


def _find_schedule(config: Config) -> PlugIn[LearningRateSchedule]:
    train = config.train
    return find_plug_in(
        "train.schedule", train.schedule, LearningRateSchedule, SCHEDULES, train.schedule_options
    )
