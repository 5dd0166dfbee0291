"""``hopper bench ab``: engines side by side on identical seeds, roots and draws.

The engines run in turns, round by round, each run in processes of its own. In the first round every
engine records gradients while its first epoch warms up, which is not timed; they are compared with
the single-process gradient. Speed-ups are told only if all engines computed the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from hopper.bench.contender import Contender, parse_contenders
from hopper.bench.emulate.hosts import EmulatedCluster
from hopper.bench.guest import Guest
from hopper.bench.parity import (
    COMPARED_LOSSES,
    EngineParity,
    InFloat64,
    check_engine,
    compare_losses,
    own_rounding,
    read_recorded,
    worst,
)
from hopper.bench.results import assemble, run_entry
from hopper.bench.train_process import train_in_process
from hopper.cluster import choose_device
from hopper.config import Config, make_config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.engines.checks import check_request
from hopper.engines.reference import Reference
from hopper.errors import ClusterError, RequestError
from hopper.features import open_graph
from hopper.partition import PartitionedGraph
from hopper.train.recorded_gradients import GRADIENTS_FOLDER
from hopper.whole_files import write_text

CONFIG_FILE: Final = "config.json"
RUNS_FOLDER: Final = "runs"
COMPARED_ITERATIONS: Final = 8
"""bound of the iterations, from a run's start, among which gradients are compared"""

Say = Callable[[str], None]
TrainRun = Callable[[str, Path, Path, Sequence[str], float], dict[str, Any]]
Losses = list[float]


@dataclass(frozen=True)
class Plan:
    """What is compared, and where everything is written.

    limit: seconds that a run may take.
    guests: other systems that are trained in the same rounds, where there are hosts.
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
    guests: tuple[Guest, ...] = ()
    cluster: EmulatedCluster | None = field(default=None, repr=False)
    """the emulated hosts; None = loopback"""

    @property
    def world(self) -> int:
        """Number of ranks of every run."""
        return self.graph.book.servers * self.config.cluster.ranks_per_server

    @property
    def total_runs(self) -> int:
        """Of all rounds."""
        return (len(self.contenders) + len(self.guests)) * self.rounds

    @cached_property
    def compared(self) -> int:
        """How many iterations, from a run's start, gradients are compared among: as many as every
        contender has. Of full batches an epoch is one iteration."""
        epochs = self.config.train.epochs
        whole = [epochs * self.epoch_iterations(each) for each in self.contenders]
        return min(self.iterations, COMPARED_ITERATIONS, *whole)

    @property
    def recorded(self) -> list[int]:
        """Iterations whose gradients the first round records: the first, a middle and the last of
        those that are looked at."""
        last = self.compared - 1
        return sorted({0, last // 2, last})

    def epoch_iterations(self, contender: Contender) -> int:
        """How many iterations an epoch of a contender has."""
        own = contender.configure(self.config)
        return make_schedule(Request(own, contender.graph(self.config)), self.world).iterations

    def run_dir(self, side: Contender | Guest, round_index: int) -> Path:
        """Where a run's files are."""
        return self.out / RUNS_FOLDER / f"{side.folder}-round-{round_index}"

    def order(self, round_index: int) -> list[Contender | Guest]:
        """Contenders and guests in a round's order: each round another one begins."""
        sides: list[Contender | Guest] = [*self.contenders, *self.guests]
        first = round_index % len(sides)
        return [*sides[first:], *sides[:first]]


@dataclass(frozen=True)
class Outcome:
    """What an A/B found."""

    results: dict[str, Any]
    """the content of results.json"""
    parity: tuple[EngineParity, ...]
    guests: tuple[dict[str, Any], ...] = ()
    """the runs of guests, by round"""

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
    if limit is not None and not 0 < limit < math.inf:
        raise RequestError(f"--run-timeout: expected more than 0 seconds, given {limit:g}")
    if config.train.init_from:
        raise RequestError(
            "train.init_from: engines are compared with one process that begins at random; "
            f"expected nothing, given {config.train.init_from!r}"
        )
    configs = [contender.configure(config) for contender in contenders]
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(f"--out: {out} exists and is not an empty folder; name another")
    graph = open_graph(config)
    for contender, each in zip(contenders, configs, strict=True):
        own = contender.graph(config)
        _check_same_graph(contender, graph, own)
        check_request(Request(each, own))
    timed = _timed_config(config)
    plan = Plan(timed, contenders, out, rounds, 0.0, graph, 0)
    iterations = make_schedule(Request(timed, graph), plan.world).iterations
    waits = timed.train.epochs * (iterations + 1) + 2
    deadlines = timed.cluster.start_timeout_seconds + waits * timed.cluster.timeout_seconds
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / CONFIG_FILE, timed.model_dump_json(indent=1) + "\n")
    return replace(plan, iterations=iterations, limit=limit or deadlines)


def _check_same_graph(contender: Contender, graph: PartitionedGraph, own: PartitionedGraph) -> None:
    if own.schema != graph.schema or own.book.servers != graph.book.servers:
        raise RequestError(
            f"--engines: {contender.label}: expected another division of the graph "
            f"{graph.schema.name!r} over {graph.book.servers} servers, found {own.schema.name!r} "
            f"over {own.book.servers}"
        )


def run_ab(plan: Plan, say: Say, on_run: Callable[[str], None]) -> Outcome:
    """Carry out a plan: rounds, after the first of which gradients are compared, and a conclusion.

    Parameters
    ----------
    say: told a line about each run that ended.
    on_run: told the name of each run that begins.

    Raises
    ------
    ClusterError: a run failed; names it and quotes its last words.
    """
    entries: list[dict[str, Any]] = []
    summaries: list[Mapping[str, Any]] = []
    guests: list[dict[str, Any]] = []
    parity: tuple[EngineParity, ...] = ()
    for index in range(plan.rounds):
        for side in plan.order(index):
            on_run(f"{side.label}, round {index + 1} of {plan.rounds}")
            if isinstance(side, Contender):
                summary = _run(plan, side, index)
                summaries.append(summary)
                entries.append(run_entry(plan.config, side, index, summary))
            else:
                summary = _run_guest(plan, side, index)
                guests.append(summary)
            seconds = ", ".join(f"{epoch['seconds']:.2f}" for epoch in summary["epochs"])
            say(f"round {index + 1}/{plan.rounds}  {side.label}: epochs of {seconds} s")
        if index == 0:
            parity = tuple(
                _in_float64(plan, contender, each, say) if each.needs_float64 else each
                for contender, each in zip(plan.contenders, check_parity(plan), strict=True)
            )
            _tell(parity, say)
    return replace(conclude(plan, parity, entries, summaries, say), guests=tuple(guests))


def check_parity(plan: Plan) -> tuple[EngineParity, ...]:
    """Compare the gradients and losses that the first round recorded with the single-process ones.

    An engine that is approximate by its batches is compared on these; one that rounds is compared
    and not judged.
    """
    references: dict[tuple[str, str], Reference] = {}
    found = []
    for contender in plan.contenders:
        rounds = contender.rounds(plan.config)
        shared = rounds or contender.exact(plan.config)
        config = contender.configure(plan.config)
        # Another division of the graph has other global ids, which learnable rows are named by.
        batches = "of all exact engines" if shared else contender.engine, config.data.partitioned
        if batches not in references:
            references[batches] = _reference(plan, config)
        parity = _check(plan, contender, plan.run_dir(contender, 0), references[batches])
        found.append(replace(parity, judged=not rounds))
    return tuple(found)


def _reference(plan: Plan, config: Config) -> Reference:
    shares = config.cluster.share_gpus
    device = choose_device(config.train.device, local_ranks=plan.world, share_gpus=shares)
    return Reference(config, open_graph(config), plan.world, device)


def _check(plan: Plan, contender: Contender, run_dir: Path, reference: Reference) -> EngineParity:
    recorded = read_recorded(run_dir / GRADIENTS_FOLDER)
    if [moment.step for moment in recorded] != plan.recorded:
        raise RequestError(
            f"{contender.label}: expected recorded gradients of iterations {plan.recorded}, "
            f"found {[moment.step for moment in recorded]}"
        )
    return check_engine(contender.label, reference.dtype, reference, recorded)


def _in_float64(plan: Plan, contender: Contender, parity: EngineParity, say: Say) -> EngineParity:
    """Run an engine once more, untimed, in a dtype whose rounding hides no error; a run that fails
    proves nothing."""
    what = f"{contender.label} in float64"
    say(f"{what}: gradients differ by {parity.gradient_difference:.1e} in float32, is it rounding?")
    run_dir = plan.out / RUNS_FOLDER / f"{contender.folder}-float64"
    iterations = min(plan.compared, plan.epoch_iterations(contender))
    changes = {
        "dtype": "float64",
        "epochs": -(-plan.compared // iterations),
        "evaluate_every": 0,
        "iterations_per_epoch": iterations,
    }
    words = [f"--train.{key}={value}" for key, value in changes.items()]
    words += ["--train.record_gradients", json.dumps(plan.recorded)]
    if _train_untimed(plan, contender, what, run_dir, words, say) is None:
        return replace(parity, again=InFloat64(math.nan, math.nan))
    exact = _reference(plan, contender.configure(_changed(plan.config, train=changes)))
    again = _check(plan, contender, run_dir, exact)
    # One process rounds in more than one way: a typed model adds up by relation, or all at once.
    orders = [True, False] if plan.config.model.typed else [plan.config.model.merge]
    rounded = [
        _reference(plan, contender.configure(_changed(plan.config, model={"merge": merge})))
        for merge in orders
    ]
    recorded = read_recorded(plan.run_dir(contender, 0) / GRADIENTS_FOLDER)
    rounding = worst([own_rounding(moment, each, exact) for moment in recorded for each in rounded])
    return replace(parity, again=InFloat64(again.gradient_difference, rounding))


def _train_untimed(
    plan: Plan, contender: Contender, what: str, run_dir: Path, words: Sequence[str], say: Say
) -> dict[str, Any] | None:
    """A run's summary; None, and a line about it, if it failed."""
    config_file = plan.out / CONFIG_FILE
    try:
        return plan.train(what, config_file, run_dir, [*contender.words, *words], plan.limit)
    except ClusterError as error:
        say(f"{what}: {error}")
        return None


def _losses_in_float64(
    plan: Plan, parity: Sequence[EngineParity], say: Say
) -> Sequence[EngineParity]:
    """Settle in float64 what losses that differ more than float32 allows are due to; as
    :func:`_in_float64`."""
    curves: dict[str, Losses | None] = {}

    def curve(contender: Contender) -> Losses | None:
        if contender.label not in curves:
            what = f"{contender.label}, all epochs in float64"
            say(f"{what}: losses differ more than float32 allows, is it rounding?")
            words = ["--train.dtype=float64", "--train.evaluate_every=0"]
            run_dir = plan.out / RUNS_FOLDER / f"{contender.folder}-losses-float64"
            summary = _train_untimed(plan, contender, what, run_dir, words, say)
            curves[contender.label] = None if summary is None else _curve(summary)
        return curves[contender.label]

    labels = {contender.label: contender for contender in plan.contenders}
    found = []
    for contender, each in zip(plan.contenders, parity, strict=True):
        if each.needs_losses_in_float64:
            own, other = curve(contender), curve(labels[_compared_with(plan, contender)])
            again = math.nan
            if own is not None and other is not None:
                again = compare_losses(own, other, "float64")
            each = replace(each, losses_again=again)
            say(f"losses of {each.engine}: within {again:.1e} in float64")
        found.append(each)
    return found


def _tell(parity: Sequence[EngineParity], say: Say) -> None:
    for each in parity:
        again = each.again
        more = "" if again is None else f" (in float64 {again.difference:.1e})"
        say(
            f"parity of {each.engine}: gradients within {each.gradient_difference:.1e}{more}, "
            f"losses within {each.loss_difference:.1e}"
        )
        for problem in each.problems:
            say(f"NOT EQUAL: {problem}: no speed-up will be told")


def conclude(
    plan: Plan,
    parity: Sequence[EngineParity],
    entries: Sequence[dict[str, Any]],
    summaries: Sequence[Mapping[str, Any]],
    say: Say,
) -> Outcome:
    """Compare the losses of all runs, those of exact engines with each other's, and assemble the
    results."""
    curves: dict[str, list[Losses]] = {}
    for entry, summary in zip(entries, summaries, strict=True):
        curves.setdefault(entry["label"], []).append(_curve(summary))
    final: Sequence[EngineParity] = []
    for contender, each in zip(plan.contenders, parity, strict=True):
        expected = curves[_compared_with(plan, contender)][0]
        for curve in curves[contender.label]:
            each = _with_losses(each, curve, expected)
        final = [*final, each]
    final = _losses_in_float64(plan, final, say)
    results = assemble(plan.config, plan.graph, entries, final, describe_reference(plan))
    return Outcome(results, tuple(final))


def describe_reference(plan: Plan) -> str:
    """In words: what parity was measured against."""
    dtype = plan.config.train.dtype
    compared = COMPARED_LOSSES[dtype]
    moments = ", ".join(str(step) for step in plan.recorded)
    which = f"the first {compared}" if compared else "all"
    return (
        f"gradients: one process, {dtype}, all roots of the global batch in one pass, at "
        f"iterations {moments} of the first round, and in float64 where rounding hides errors; "
        f"losses: the same, and "
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
    if contender is not None and not contender.exact(plan.config):
        return contender.label
    exact = (each for each in plan.contenders if each.exact(plan.config))
    return next(exact, plan.contenders[0]).label


def _run(plan: Plan, contender: Contender, round_index: int) -> dict[str, Any]:
    recorded = plan.recorded if round_index == 0 else []
    return plan.train(
        f"{contender.label}, round {round_index + 1}",
        plan.out / CONFIG_FILE,
        plan.run_dir(contender, round_index),
        [*contender.words, "--train.record_gradients", json.dumps(recorded)],
        plan.limit,
    )


def _run_guest(plan: Plan, guest: Guest, round_index: int) -> dict[str, Any]:
    assert plan.cluster is not None
    found = guest.train(plan.cluster, round_index, plan.run_dir(guest, round_index))
    return {"label": guest.label, "round": round_index, **found}


def _curve(summary: Mapping[str, Any]) -> Losses:
    return [float(loss) for epoch in summary["epochs"] for loss in epoch["iteration_losses"]]


def _with_losses(parity: EngineParity, losses: Losses, others: Losses) -> EngineParity:
    difference = compare_losses(losses, others, parity.dtype)
    return replace(parity, loss_curve=worst([parity.loss_curve, difference]))
