"""``hopper bench ab``: engines side by side on identical seeds, roots and draws.

First every engine's gradient is compared with the single-process one in a short run that is not
timed; then the engines run in turns, round by round, each run in processes of its own. Speed-ups
are told only if all engines computed the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from hopper.bench.contender import Contender, parse_contenders
from hopper.bench.parity import (
    COMPARED_LOSSES,
    EngineParity,
    check_engine,
    compare_losses,
    read_recorded,
    worst,
)
from hopper.bench.results import assemble, run_entry
from hopper.bench.train_process import train_in_process
from hopper.cluster import choose_device
from hopper.config import Config, make_config
from hopper.engines.assemble import check_ranks, check_request, make_schedule
from hopper.engines.reference import Reference
from hopper.errors import RequestError
from hopper.partition import PartitionedGraph
from hopper.train.loop import GRADIENTS_FOLDER
from hopper.train.results import write_text

CONFIG_FILE: Final = "config.json"
RUNS_FOLDER: Final = "runs"
PARITY_EPOCHS: Final = 2
PARITY_ITERATIONS: Final = 8
"""bound of a parity run's iterations an epoch"""

Say = Callable[[str], None]
TrainRun = Callable[[str, Path, Path, Sequence[str], float], dict[str, Any]]
Losses = list[float]


@dataclass(frozen=True)
class Plan:
    """What is compared, and where everything is written.

    limit: seconds that a run may take.
    """

    config: Config
    contenders: tuple[Contender, ...]
    out: Path
    rounds: int
    limit: float
    graph: PartitionedGraph = field(repr=False)
    iterations: int
    """an epoch's, in timed runs"""
    train: TrainRun = field(default=train_in_process, repr=False)
    """how a run is made: in processes of this machine, or over emulated hosts"""

    @property
    def world(self) -> int:
        """Number of ranks of every run."""
        return self.graph.book.servers * self.config.cluster.ranks_per_server

    @property
    def total_runs(self) -> int:
        """Parity runs and timed runs."""
        return len(self.contenders) * (1 + self.rounds)

    def run_dir(self, contender: Contender, round_index: int | None) -> Path:
        """Where a run's files are; round None is the parity run."""
        suffix = "parity" if round_index is None else f"round-{round_index}"
        return self.out / RUNS_FOLDER / f"{contender.folder}-{suffix}"

    def order(self, round_index: int) -> list[Contender]:
        """The contenders in a round's order: each round another one begins."""
        first = round_index % len(self.contenders)
        return [*self.contenders[first:], *self.contenders[:first]]


@dataclass(frozen=True)
class Outcome:
    """What an A/B found."""

    results: dict[str, Any]
    """the content of results.json"""
    parity: tuple[EngineParity, ...]

    @property
    def problems(self) -> list[str]:
        """Why no speed-up may be told; empty where all engines computed the same."""
        return [problem for each in self.parity for problem in each.problems]


def make_plan(
    config: Config, engines: Sequence[str], out: Path, rounds: int, limit: float | None = None
) -> Plan:
    """Check a request before anything is started, and lay out its folder.

    Parameters
    ----------
    limit: seconds that a run may take. By default what the configuration's deadlines allow: those
        of the start, and one ``cluster.timeout_seconds`` for every iteration and evaluation.

    Raises
    ------
    RequestError, ConfigError, GraphError: names what is wrong.
    """
    contenders = parse_contenders(engines)
    if rounds < 1:
        raise RequestError(f"--rounds: expected at least 1, given {rounds}")
    if limit is not None and not limit > 0:
        raise RequestError(f"--run-timeout: expected more than 0 seconds, given {limit:g}")
    configs = [contender.configure(config) for contender in contenders]
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(f"--out: {out} exists and is not an empty folder; name another")
    graph = PartitionedGraph.open(config.data.partitioned)
    check_request(config, graph.schema)
    timed = _timed_config(config)
    plan = Plan(timed, contenders, out, rounds, 0.0, graph, 0)
    for each in configs:
        check_ranks(each, plan.world)
    iterations = make_schedule(timed, graph, plan.world).iterations
    waits = timed.train.epochs * (iterations + 1) + 2
    deadlines = timed.cluster.start_timeout_seconds + waits * timed.cluster.timeout_seconds
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / CONFIG_FILE, timed.model_dump_json(indent=1) + "\n")
    return replace(plan, iterations=iterations, limit=limit or deadlines)


def run_ab(plan: Plan, say: Say, on_run: Callable[[str], None]) -> Outcome:
    """Carry out a plan: parity runs, timed rounds, conclusion.

    Parameters
    ----------
    say: told a line about each run that ended.
    on_run: told the name of each run that begins.

    Raises
    ------
    ClusterError: a run failed; names it and quotes its last words.
    """
    curves = run_parity(plan, on_run)
    parity = check_parity(plan, curves)
    for each in parity:
        say(
            f"parity of {each.engine}: gradients within {each.gradient_difference:.1e}, losses "
            f"within {each.loss_difference:.1e}"
        )
        for problem in each.problems:
            say(f"NOT EQUAL: {problem}: no speed-up will be told")
    entries, summaries = run_rounds(plan, say, on_run)
    return conclude(plan, parity, entries, summaries)


def run_parity(plan: Plan, on_run: Callable[[str], None]) -> dict[str, Losses]:
    """The untimed runs that record gradients; returns every contender's loss curve."""
    curves = {}
    config = parity_config(plan)
    words = [
        *("--train.epochs", str(config.train.epochs)),
        *("--train.iterations_per_epoch", str(config.train.iterations_per_epoch)),
        *("--train.record_gradients", json.dumps(config.train.record_gradients)),
        *("--train.evaluate_every", "0"),
    ]
    for contender in plan.contenders:
        on_run(f"{contender.label}, parity")
        summary = _run(plan, contender, None, words)
        curves[contender.label] = _curve(summary)
    return curves


def check_parity(plan: Plan, curves: Mapping[str, Losses]) -> tuple[EngineParity, ...]:
    """Compare the recorded gradients with the single-process ones, and losses with each other.

    An approximate engine has batches of its own: its gradient is compared on these, and its losses
    with no other engine's.
    """
    config = parity_config(plan)
    device = choose_device(config.train.device, local_ranks=plan.world)
    references: dict[str, Reference] = {}
    found = []
    for contender in plan.contenders:
        batches = "exact" if contender.exact else contender.engine
        if batches not in references:
            own = contender.configure(config)
            references[batches] = Reference(own, plan.graph, plan.world, device)
        recorded = read_recorded(plan.run_dir(contender, None) / GRADIENTS_FOLDER)
        expected = config.train.record_gradients
        if [moment.step for moment in recorded] != expected:
            raise RequestError(
                f"{contender.label}: expected recorded gradients of iterations {expected}, found "
                f"{[moment.step for moment in recorded]}"
            )
        parity = check_engine(contender.label, config.train.dtype, references[batches], recorded)
        curve = curves[contender.label]
        found.append(_with_losses(parity, curve, curves[_compared_with(plan, contender)]))
    return tuple(found)


def run_rounds(
    plan: Plan, say: Say, on_run: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    """The timed runs, engines in turns; returns their entries in results.json and summaries."""
    entries: list[dict[str, Any]] = []
    summaries: list[Mapping[str, Any]] = []
    for index in range(plan.rounds):
        for contender in plan.order(index):
            on_run(f"{contender.label}, round {index + 1} of {plan.rounds}")
            summary = _run(plan, contender, index, [])
            seconds = ", ".join(f"{epoch['seconds']:.2f}" for epoch in summary["epochs"])
            say(f"round {index + 1}/{plan.rounds}  {contender.label}: epochs of {seconds} s")
            summaries.append(summary)
            entries.append(run_entry(plan.config, contender, index, summary))
    return entries, summaries


def conclude(
    plan: Plan,
    parity: Sequence[EngineParity],
    entries: Sequence[dict[str, Any]],
    summaries: Sequence[Mapping[str, Any]],
) -> Outcome:
    """Add the timed runs' losses to parity, and assemble the results."""
    curves: dict[str, list[Losses]] = {}
    for entry, summary in zip(entries, summaries, strict=True):
        curves.setdefault(entry["label"], []).append(_curve(summary))
    final = []
    for contender, each in zip(plan.contenders, parity, strict=True):
        expected = curves[_compared_with(plan, contender)][0]
        for curve in curves[contender.label]:
            each = _with_losses(each, curve, expected)
        final.append(each)
    results = assemble(plan.config, plan.graph, entries, final, describe_reference(plan))
    return Outcome(results, tuple(final))


def parity_config(plan: Plan) -> Config:
    """The short run whose first, middle and last gradients are recorded."""
    epochs = min(plan.config.train.epochs, PARITY_EPOCHS)
    iterations = min(plan.iterations, PARITY_ITERATIONS)
    last = epochs * iterations - 1
    return _changed(
        plan.config,
        train={
            "epochs": epochs,
            "iterations_per_epoch": iterations,
            "record_gradients": sorted({0, last // 2, last}),
            "evaluate_every": 0,
        },
    )


def describe_reference(plan: Plan) -> str:
    """In words: what parity was measured against."""
    config = parity_config(plan)
    compared = COMPARED_LOSSES[config.train.dtype]
    moments = ", ".join(str(step) for step in config.train.record_gradients)
    which = f"the first {compared}" if compared else "all"
    return (
        f"gradients: one process, {config.train.dtype}, all roots of the global batch in one "
        f"pass, at iterations {moments} of a parity run; losses: the same, and "
        f"{_compared_with(plan, None)}'s over {which} iterations"
    )


def _timed_config(config: Config) -> Config:
    """What must not differ between engines, or would end runs early or go into their time."""
    free: dict[str, Any] = {"patience": 0, "resume": False, "checkpoint_every": 0}
    data = {"partitioned": str(Path(config.data.partitioned).absolute())}
    return _changed(config, train=free | {"record_gradients": [], "run_dir": ""}, data=data)


def _changed(config: Config, **sections: Mapping[str, Any]) -> Config:
    values = config.model_dump()
    for section, changes in sections.items():
        values[section] |= changes
    return make_config(values)


def _compared_with(plan: Plan, contender: Contender | None) -> str:
    """Whose losses a contender's are compared with: the first exact one's, if it is exact too."""
    if contender is not None and not contender.exact:
        return contender.label
    return next((each for each in plan.contenders if each.exact), plan.contenders[0]).label


def _run(
    plan: Plan, contender: Contender, round_index: int | None, words: Sequence[str]
) -> dict[str, Any]:
    which = "parity run" if round_index is None else f"round {round_index + 1}"
    return plan.train(
        f"{contender.label}, {which}",
        plan.out / CONFIG_FILE,
        plan.run_dir(contender, round_index),
        [*contender.words, *words],
        plan.limit,
    )


def _curve(summary: Mapping[str, Any]) -> Losses:
    return [float(loss) for epoch in summary["epochs"] for loss in epoch["iteration_losses"]]


def _with_losses(parity: EngineParity, losses: Losses, others: Losses) -> EngineParity:
    difference = compare_losses(losses, others, parity.dtype)
    return replace(parity, loss_curve=worst([parity.loss_curve, difference]))
