"""``hopper bench ab``: compares engines on identical seeds, roots and draws.

The engines take turns, round by round, and each run has its own processes. In the first round,
during the untimed first epoch, every engine records gradients. These are compared with the gradient
of a single process. Speed-ups are reported only if all engines computed the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopper.bench.ab_plan import CONFIG_FILE, RUNS_FOLDER, Plan
from hopper.bench.contender import Contender
from hopper.bench.guest import Guest
from hopper.bench.parity import (
    COMPARED_LOSSES,
    EngineParity,
    InFloat64,
    check_engine,
    compare_losses,
    measure_rounding,
    read_recorded,
    worst,
)
from hopper.bench.results import assemble, run_entry
from hopper.config import Config, change_config
from hopper.device_choice import choose_device
from hopper.engines.reference import Reference
from hopper.errors import ClusterError, RequestError
from hopper.features import open_graph
from hopper.train.recorded_gradients import GRADIENTS_FOLDER

Say = Callable[[str], None]
Losses = list[float]


@dataclass(frozen=True)
class Outcome:
    """The findings of an A/B.

    Attributes
    ----------
    results: the content of results.json.
    parity: the comparison of gradients and losses, by contender.
    guests: the runs of guests, by round.
    """

    results: dict[str, Any]
    parity: tuple[EngineParity, ...]
    guests: tuple[dict[str, Any], ...] = ()

    @property
    def problems(self) -> list[str]:
        """The reasons why no speed-up may be reported; empty if all engines computed the same."""
        return [problem for engine in self.parity for problem in engine.problems]


def run_ab(plan: Plan, say: Say, on_run: Callable[[str], None]) -> Outcome:
    """Carry out a plan: train all rounds, compare gradients after the first, and conclude.

    Parameters
    ----------
    say: prints a line about each run that has ended.
    on_run: called with the name of each run that begins.

    Raises
    ------
    ClusterError: a run failed; names it and quotes the end of its output.
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
                _rerun_in_float64(plan, contender, engine, say) if engine.needs_float64 else engine
                for contender, engine in zip(plan.contenders, check_parity(plan), strict=True)
            )
            _say_parity(parity, say)
    return replace(conclude(plan, parity, entries, summaries, say), guests=tuple(guests))


def check_parity(plan: Plan) -> tuple[EngineParity, ...]:
    """Compare the gradients and losses of the first round with those of a single process.

    An engine with batches of its own is compared on these batches. An engine that rounds on purpose
    is compared but only has to be near.
    """
    references: dict[tuple[str, str], Reference] = {}
    parity = []
    for contender in plan.contenders:
        rounds = contender.rounds(plan.config)
        shared = rounds or contender.exact(plan.config)
        config = contender.configure(plan.config)
        # Learnable rows are named by global ids, which differ between divisions of the graph.
        batches = "of all exact engines" if shared else contender.engine, config.data.partitioned
        if batches not in references:
            references[batches] = _make_reference(plan, config)
        engine = _check(plan, contender, plan.run_dir(contender, 0), references[batches])
        parity.append(replace(engine, judged=not rounds))
    return tuple(parity)


def _make_reference(plan: Plan, config: Config) -> Reference:
    shares = config.cluster.share_gpus
    device = choose_device(config.train.device, local_ranks=plan.world, share_gpus=shares)
    return Reference(config, open_graph(config), plan.world, device)


def _check(plan: Plan, contender: Contender, run_dir: Path, reference: Reference) -> EngineParity:
    """Compare a run's recorded gradients with a reference."""
    recorded = read_recorded(run_dir / GRADIENTS_FOLDER)
    if [moment.step for moment in recorded] != plan.recorded_iterations:
        raise RequestError(
            f"{contender.label}: expected recorded gradients of iterations "
            f"{plan.recorded_iterations}, found {[moment.step for moment in recorded]}"
        )
    return check_engine(contender.label, reference.dtype, reference, recorded)


def _rerun_in_float64(
    plan: Plan, contender: Contender, parity: EngineParity, say: Say
) -> EngineParity:
    """Run an engine again, untimed, in float64, whose rounding hides no error.

    If that run fails, its differences are NaN and the engine does not pass.
    """
    what = f"{contender.label} in float64"
    say(f"{what}: gradients differ by {parity.gradient_difference:.1e} in float32, is it rounding?")
    run_dir = plan.out / RUNS_FOLDER / f"{contender.folder}-float64"
    iterations = min(plan.compared_iterations, plan.epoch_iterations(contender))
    changes = {
        "dtype": "float64",
        "epochs": -(-plan.compared_iterations // iterations),
        "evaluate_every": 0,
        "iterations_per_epoch": iterations,
    }
    words = [f"--train.{key}={value}" for key, value in changes.items()]
    words += ["--train.record_gradients", json.dumps(plan.recorded_iterations)]
    if _train_untimed(plan, contender, what, run_dir, words, say) is None:
        return replace(parity, again=InFloat64(math.nan, math.nan))
    exact_config = change_config(plan.config, train=changes)
    exact = _make_reference(plan, contender.configure(exact_config))
    again = _check(plan, contender, run_dir, exact)
    # A single process has several orders of summation: a typed model adds up relation by relation,
    # or all relations at once.
    orders = [True, False] if plan.config.model.typed else [plan.config.model.merge]
    configs = [change_config(plan.config, model={"merge": merge}) for merge in orders]
    references = [_make_reference(plan, contender.configure(config)) for config in configs]
    recorded = read_recorded(plan.run_dir(contender, 0) / GRADIENTS_FOLDER)
    rounding = worst(
        [
            measure_rounding(moment, reference, exact)
            for moment in recorded
            for reference in references
        ]
    )
    return replace(parity, again=InFloat64(again.gradient_difference, rounding))


def _train_untimed(
    plan: Plan, contender: Contender, what: str, run_dir: Path, words: Sequence[str], say: Say
) -> dict[str, Any] | None:
    """Train once; return the summary, or print a line and return None if the run failed."""
    config_file = plan.out / CONFIG_FILE
    try:
        return plan.train(what, config_file, run_dir, [*contender.words, *words], plan.limit)
    except ClusterError as error:
        say(f"{what}: {error}")
        return None


def _compare_losses_in_float64(
    plan: Plan, parity: Sequence[EngineParity], say: Say
) -> Sequence[EngineParity]:
    """Run engines again in float64 if their losses differ more than float32 allows.

    If such a run fails, the difference is NaN and the engine does not pass.
    """
    curves: dict[str, Losses | None] = {}

    def curve(contender: Contender) -> Losses | None:
        """Train a contender in float64, once, and return its losses. None if it fails."""
        if contender.label not in curves:
            what = f"{contender.label}, all epochs in float64"
            say(f"{what}: losses differ more than float32 allows, is it rounding?")
            words = ["--train.dtype=float64", "--train.evaluate_every=0"]
            run_dir = plan.out / RUNS_FOLDER / f"{contender.folder}-losses-float64"
            summary = _train_untimed(plan, contender, what, run_dir, words, say)
            curves[contender.label] = None if summary is None else _curve(summary)
        return curves[contender.label]

    by_label = {contender.label: contender for contender in plan.contenders}
    result = []
    for contender, engine in zip(plan.contenders, parity, strict=True):
        if engine.needs_losses_in_float64:
            losses = curve(contender)
            expected = curve(by_label[_loss_reference(plan, contender)])
            again = math.nan
            if losses is not None and expected is not None:
                again = compare_losses(losses, expected, "float64")
            engine = replace(engine, losses_again=again)
            say(f"losses of {engine.engine}: within {again:.1e} in float64")
        result.append(engine)
    return result


def _say_parity(parity: Sequence[EngineParity], say: Say) -> None:
    for engine in parity:
        again = engine.again
        more = "" if again is None else f" (in float64 {again.difference:.1e})"
        say(
            f"parity of {engine.engine}: gradients within {engine.gradient_difference:.1e}{more}, "
            f"losses within {engine.loss_difference:.1e}"
        )
        for problem in engine.problems:
            say(f"NOT EQUAL: {problem}: no speed-up will be told")


def conclude(
    plan: Plan,
    parity: Sequence[EngineParity],
    entries: Sequence[dict[str, Any]],
    summaries: Sequence[Mapping[str, Any]],
    say: Say,
) -> Outcome:
    """Compare the losses of all runs and assemble the results.

    Exact engines are compared with each other, any other engine with its own first run.
    """
    curves: dict[str, list[Losses]] = {}
    for entry, summary in zip(entries, summaries, strict=True):
        curves.setdefault(entry["label"], []).append(_curve(summary))
    final: Sequence[EngineParity] = []
    for contender, engine in zip(plan.contenders, parity, strict=True):
        expected = curves[_loss_reference(plan, contender)][0]
        for curve in curves[contender.label]:
            engine = _add_losses(engine, curve, expected)
        final = [*final, engine]
    final = _compare_losses_in_float64(plan, final, say)
    results = assemble(plan.config, plan.graph, entries, final, describe_reference(plan))
    return Outcome(results, tuple(final))


def describe_reference(plan: Plan) -> str:
    """Say in words what gradients and losses were compared with."""
    dtype = plan.config.train.dtype
    compared = COMPARED_LOSSES[dtype]
    moments = ", ".join(str(step) for step in plan.recorded_iterations)
    iterations = f"the first {compared}" if compared else "all"
    return (
        f"gradients: one process, {dtype}, all roots of the global batch in one pass, at "
        f"iterations {moments} of the first round, and in float64 where rounding hides errors; "
        f"losses: the same, and "
        f"{_loss_reference(plan, None)}'s over {iterations} iterations"
    )


def _loss_reference(plan: Plan, contender: Contender | None) -> str:
    """Return the label of the contender whose losses another's are compared with.

    It is the first exact contender for all exact ones, and a contender itself otherwise.
    """
    if contender is not None and not contender.exact(plan.config):
        return contender.label
    exact = (candidate for candidate in plan.contenders if candidate.exact(plan.config))
    return next(exact, plan.contenders[0]).label


def _run(plan: Plan, contender: Contender, round_index: int) -> dict[str, Any]:
    recorded = plan.recorded_iterations if round_index == 0 else []
    return plan.train(
        f"{contender.label}, round {round_index + 1}",
        plan.out / CONFIG_FILE,
        plan.run_dir(contender, round_index),
        [*contender.words, "--train.record_gradients", json.dumps(recorded)],
        plan.limit,
    )


def _run_guest(plan: Plan, guest: Guest, round_index: int) -> dict[str, Any]:
    assert plan.cluster is not None
    summary = guest.train(plan.cluster, round_index, plan.run_dir(guest, round_index))
    return {"label": guest.label, "round": round_index, **summary}


def _curve(summary: Mapping[str, Any]) -> Losses:
    return [float(loss) for epoch in summary["epochs"] for loss in epoch["iteration_losses"]]


def _add_losses(parity: EngineParity, losses: Losses, others: Losses) -> EngineParity:
    difference = compare_losses(losses, others, parity.dtype)
    return replace(parity, loss_curve=worst([parity.loss_curve, difference]))
