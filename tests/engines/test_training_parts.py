"""What every loss, metric, optimiser and schedule promises: built-ins and examples alike.

Guards against: means of means, metrics that ranks cannot add up, optimisers that a checkpoint does
not restore, schedules that a resumed run would continue otherwise, engines that differ in them.
"""

import math
from typing import Any

import pytest
import torch
from torch import nn

from hopper.config import Config, make_config
from hopper.config.plug_ins import find_plug_in
from hopper.config.train import BUILT_INS
from hopper.engines.learning_rate import SCHEDULES, LearningRateSchedule, LRScheduler
from hopper.engines.optimizer import RULES, Adam, AdamW, Optimizer, Sgd, UpdateRule
from hopper.engines.training_parts import check_training_parts
from hopper.graph import GraphSchema, Labels, NodeType
from hopper.migrate.flat_model import FlatModel
from hopper.models.label_examples import make_examples
from hopper.models.losses import LINK_LOSSES, LOSSES, Loss
from hopper.models.metrics import LINK_METRICS, METRICS, Metric
from tests.server_processes import run_python

CLASSES = 4


def schema(kind: str = "class", classes: int = CLASSES) -> GraphSchema:
    return GraphSchema("g", {"item": NodeType(9, 3, "float32")}, {}, "item",
                       {"item": Labels(kind, classes)}, {"train": 5})  # fmt: skip


def config_of(**train: Any) -> Config:
    return make_config({"data": {"partitioned": "parts"}, "train": train})


def check(kind: str = "class", **train: Any) -> None:
    check_training_parts(config_of(**train), schema(kind), iterations=10)


def test_the_names_are_those_of_the_configuration():
    registered = {
        "loss": {**LOSSES, **LINK_LOSSES},
        "metric": {**METRICS, **LINK_METRICS},
        "optimizer": RULES,
        "schedule": SCHEDULES,
    }
    known = {
        key: tuple(name for name in names if name != "auto") for key, names in BUILT_INS.items()
    }
    assert known == {key: tuple(names) for key, names in registered.items()}


@pytest.mark.parametrize("name", [*LOSSES, "focal_loss:FocalLoss"])
def test_a_loss_is_one_number_per_root(name):
    plug_in = find_plug_in("train.loss", name, Loss, LOSSES, {}, ["classes"])
    loss: Loss = plug_in.make(classes=CLASSES)
    for kind in plug_in.kind.label_kinds:
        check(kind, loss=name)
        logits, labels = make_examples(kind, CLASSES)
        losses = loss.root_losses(logits.requires_grad_(), labels)
        assert losses.shape == labels.shape[:1]
        assert (losses >= 0).all()
        single = [loss.root_losses(logits[i : i + 1], labels[i : i + 1]) for i in range(7)]
        torch.testing.assert_close(torch.cat(single), losses, rtol=1e-12, atol=1e-12)
        assert torch.autograd.gradcheck(
            lambda x, targets=labels: loss.root_losses(x, targets), (logits,)
        )
        assert loss.root_losses(logits.float(), labels).dtype == torch.float32 or kind != "class"


@pytest.mark.parametrize(
    "name", [*(name for name, kind in METRICS.items() if hasattr(kind, "sums")), "macro_f1:MacroF1"]
)
def test_a_metric_is_made_of_sums(name):
    plug_in = find_plug_in("train.metric", name, Metric, METRICS, {}, ["classes"])
    metric: Metric = plug_in.make(classes=CLASSES)
    for kind in plug_in.kind.label_kinds:
        check(kind, metric=name)
        logits, labels = make_examples(kind, CLASSES)
        sums = metric.sums(logits, labels)
        parts = sum(metric.sums(logits[p], labels[p]) for p in (slice(2), slice(2, 2), slice(2, 7)))
        torch.testing.assert_close(parts, sums)
        assert math.isnan(metric.value(metric.sums(logits[:0], labels[:0])))
        right = labels.double() if kind == "float" else labels * 2.0 - 1
        if kind == "class":
            right = torch.nn.functional.one_hot(labels, CLASSES).double()
        best = metric.value(metric.sums(right, labels))
        assert (best > metric.value(sums)) is metric.higher_is_better


@pytest.mark.parametrize("name", [*RULES, "lion:Lion"])
def test_a_restored_rule_makes_the_same_updates(name):
    check(optimizer=name)
    arguments = ["parameters", "weight_decay"]
    plug_in = find_plug_in("train.optimizer", name, UpdateRule, RULES, {}, arguments)
    start = torch.linspace(-1, 1, 9, dtype=torch.float64)
    gradients = torch.randn(5, 9, generator=torch.Generator().manual_seed(1)).double()

    def make_rule() -> Any:
        return plug_in.make(parameters=start, weight_decay=0.1)

    parameters, first = start.clone(), make_rule()
    for gradient in gradients[:3]:
        first.update(parameters, gradient.clone(), 0.05)
    second, resumed = make_rule(), parameters.clone()
    assert first.state().keys() == second.state().keys()
    for key, tensor in first.state().items():
        second.state()[key].copy_(tensor)
    for gradient in gradients[3:]:
        first.update(parameters, gradient.clone(), 0.05)
        second.update(resumed, gradient.clone(), 0.05)
    assert torch.equal(parameters, resumed)
    assert (parameters - start).abs().min() > 1e-4
    still = parameters.clone()
    first.update(still, gradients[0].clone(), 0.0)
    assert torch.equal(still, parameters), "no step at a learning rate of 0"


OPTIONS = {"step": {"step_size": 4, "gamma": 0.5}, "warmup": {"warmup_steps": 3}}


@pytest.mark.parametrize("name", [*SCHEDULES, "one_cycle:OneCycle"])
def test_a_schedule_depends_on_the_moment_alone(name):
    options = OPTIONS.get(name, {})
    check(schedule=name, schedule_options=options)
    plug_in = find_plug_in("train.schedule", name, LearningRateSchedule, SCHEDULES, options)
    forwards = LRScheduler(plug_in.make(), epochs=4, iterations=5)
    moments = [(epoch, iteration) for epoch in range(4) for iteration in range(5)]
    factors = {moment: forwards.factor_at(*moment) for moment in moments}
    backwards = LRScheduler(plug_in.make(), epochs=4, iterations=5)
    assert {moment: backwards.factor_at(*moment) for moment in moments[::-1]} == factors
    assert max(factors.values()) <= 1.0
    assert LRScheduler(plug_in.make(), 1, 1).factor_at(0, 0) >= 0.0


def test_schedules_equal_torch():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    kinds = torch.optim.lr_scheduler
    cases = [
        (SCHEDULES["cosine"](minimum=0.1), kinds.CosineAnnealingLR(optimizer, 20, eta_min=0.1)),
        (SCHEDULES["step"](step_size=6, gamma=0.5), kinds.StepLR(optimizer, 6, gamma=0.5)),
        (SCHEDULES["warmup"](warmup_fraction=0.25), kinds.LinearLR(optimizer, 0.2, 1.0, 4)),
    ]
    for schedule, torch_schedule in cases:
        optimizer.param_groups[0]["lr"] = torch_schedule.base_lrs[0] = 1.0
        for step in range(20):
            expected = torch_schedule._get_closed_form_lr()[0]
            assert schedule.factor(step, 20) == pytest.approx(expected), (type(schedule), step)
            torch_schedule.last_epoch += 1


def test_a_schedule_begins_after_warming_up():
    schedule = SCHEDULES["cosine"](minimum=0.2, warmup_steps=4)
    factors = [schedule.factor(step, 12) for step in range(13)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[-1] == pytest.approx(0.2)
    lowest = SCHEDULES["step"](step_size=1, gamma=0.1, minimum=0.05)
    assert [lowest.factor(step, 9) for step in (0, 1, 2, 3)] == [1.0, 0.1, 0.05, 0.05]


OF_TORCH = {Adam: torch.optim.Adam, AdamW: torch.optim.AdamW, Sgd: torch.optim.SGD}


@pytest.mark.parametrize("kind", OF_TORCH)
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_updates_equal_torch(kind, weight_decay):
    def make_model() -> FlatModel:
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
        module[0].bias.requires_grad_(False)
        return FlatModel(module)

    ours, theirs, first = make_model(), make_model(), make_model()
    rule = kind(ours.parameters, weight_decay=weight_decay)
    optimizer = Optimizer(ours, rule, learning_rate=0.05)
    trained = [p for p in theirs.module.parameters() if p.requires_grad]
    expected = OF_TORCH[kind](trained, lr=0.05, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        gradient = torch.randn(ours.gradients.shape, generator=generator).double()
        for packed in (ours, theirs):
            packed.gradients.copy_(gradient)
        optimizer.step()
        expected.step()
        assert torch.equal(ours.gradients, gradient)
    torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-13, atol=1e-13)
    assert (ours.parameters - first.parameters).abs().min() > 1e-4
    assert torch.equal(ours.module[0].bias, first.module[0].bias)


def test_a_rank_starts_without_the_compiler():
    """torch's compiler takes as long to import as torch itself, on every rank."""
    script = (
        "import sys, torch; from torch import nn\n"
        "from hopper.train import rank\n"
        "from hopper.engines.optimizer import Adam, Optimizer\n"
        "from hopper.migrate.flat_model import FlatModel\n"
        "rank.make_deterministic()\n"
        "assert torch.are_deterministic_algorithms_enabled()\n"
        "packed = FlatModel(nn.Linear(2, 2))\n"
        "Optimizer(packed, Adam(packed.parameters), learning_rate=0.1).step()\n"
        "loaded = {'torch._dynamo', 'torch._inductor', 'sympy', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr
