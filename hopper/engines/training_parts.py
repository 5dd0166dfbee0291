"""From a configuration to what it names: loss, metric, optimiser, schedule of learning rates."""

from __future__ import annotations

import torch

from hopper.config import Config
from hopper.engines.learning_rate import SCHEDULES, LearningRateSchedule, Pace
from hopper.engines.optimizer import RULES, Optimizer, UpdateRule, check_rule
from hopper.errors import ConfigError
from hopper.graph.schema import GraphSchema, LabelKind
from hopper.migrate.packed_model import PackedModel
from hopper.models import Objective
from hopper.models.losses import DEFAULT_LOSSES, LOSSES, Loss, check_loss
from hopper.models.metrics import (
    DEFAULT_METRICS,
    METRICS,
    AnyMetric,
    Metric,
    check_metric,
)
from hopper.plug_ins import PlugIn, find_plug_in


def make_objective(config: Config, schema: GraphSchema) -> Objective:
    """Loss and metrics of a configuration, for the graph's labels.

    Raises
    ------
    ConfigError: one of them cannot be found or made, or is for other labels; names the key.
    """
    labels = schema.labels[schema.target_type()]
    loss = _find_loss(config, labels.kind).make(classes=labels.classes)
    metrics = [each.make(classes=labels.classes) for each in _find_metrics(config, labels.kind)]
    return Objective(labels.kind, loss, metrics)


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
    labels, train = schema.labels[schema.target_type()], config.train
    loss, metrics = _find_loss(config, labels.kind), _find_metrics(config, labels.kind)
    made = loss.make(classes=labels.classes)
    check_loss(loss.key, loss.name, made, labels.kind, labels.classes)
    names: list[str] = []
    for each in metrics:
        metric = each.make(classes=labels.classes)
        check_metric(each.key, each.name, metric, labels.kind, labels.classes)
        if metric.name in names:
            raise ConfigError(
                f"{each.key}: expected metrics of other names, got {metric.name!r} twice"
            )
        names.append(metric.name)
    make_pace(config, iterations).check()
    rule, dtype = _find_rule(config), getattr(torch, train.dtype)
    first, second = (
        rule.make(parameters=torch.zeros(size, dtype=dtype), weight_decay=train.weight_decay)
        for size in (4, 2)
    )
    check_rule(rule.name, (first, second), dtype)


def _find_loss(config: Config, kind: LabelKind) -> PlugIn[Loss]:
    train = config.train
    name = DEFAULT_LOSSES[kind] if train.loss == "auto" else train.loss
    found = find_plug_in("train.loss", name, Loss, LOSSES, train.loss_options, ["classes"])
    return _for_labels(found, kind)


def _find_metrics(config: Config, kind: LabelKind) -> list[PlugIn[AnyMetric]]:
    """The one that selects the best model first."""
    train = config.train
    name = DEFAULT_METRICS[kind] if train.metric == "auto" else train.metric
    asked = [("train.metric", name, train.metric_options)]
    asked += [("train.more_metrics", each, {}) for each in train.more_metrics]
    return [
        _for_labels(find_plug_in(key, each, Metric, METRICS, options, ["classes"]), kind)
        for key, each, options in asked
    ]


def _for_labels(found: PlugIn, kind: LabelKind) -> PlugIn:
    """The same, if it is for labels of that kind."""
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
