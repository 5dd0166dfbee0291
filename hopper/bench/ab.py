"""``hopper bench ab``: compares engines on identical seeds, roots and draws.

The engines take turns, round by round, and each run has its own processes. In the first round,
during the untimed first epoch, every engine records gradients. These are compared with the gradient
of a single process. Speed-ups are reported only if all engines computed the same.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import OutOfMemoryError

from cache_server.available_memory import available_memory
from hopper.bench.ab_plan import CONFIG_FILE, Plan
from hopper.bench.contender import Contender
from hopper.bench.guest import Guest
from hopper.bench.parity import (
    COMPARED_LOSSES,
    ORDERS,
    EngineParity,
    check_engine,
    compare_losses,
    measure_spread,
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
            parity = check_parity(plan)
            for engine in parity:
                say(_tell_parity(engine))
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


def _settle(
    plan: Plan,
    parity: Sequence[EngineParity],
    entries: Sequence[Mapping[str, Any]],
    say: Say,
) -> list[EngineParity]:
    """Let float64 decide about the engines that float32 cannot judge, and measure the spread of one
    process for them."""
    unsettled = {engine.engine for engine in parity if engine.needs_float64}
    if not unsettled:
        return list(parity)
    say(f"{', '.join(sorted(unsettled))}: more than 1e-5 apart in float32; float64 decides")
    in_float64 = _check_in_float64(plan, unsettled, entries, say)
    result = []
    for contender, engine in zip(plan.contenders, parity, strict=True):
        if engine.needs_float64:
            spread = _measure_spread(plan, contender, engine)
            again = in_float64.get(engine.engine)
            engine = replace(engine, in_float64=again, spread=spread)
            say(_tell_parity(engine))
        result.append(engine)
    return result


def _check_in_float64(
    plan: Plan, labels: set[str], entries: Sequence[Mapping[str, Any]], say: Say
) -> dict[str, EngineParity]:
    """Compare contenders in float64, in an untimed A/B of one round.

    Where memory is short it has fewer roots. Where it fails, nothing is returned.
    """
    labels = labels | {_loss_reference(plan, c) for c in plan.contenders if c.label in labels}
    contenders = tuple(contender for contender in plan.contenders if contender.label in labels)
    ranks = max(sum(entry["peak_rss_mib"]) for entry in entries) * 2**20
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    roots = plan.config.train.batch_size
    sizes = [roots, max(1, roots // 4)]
    for batch_size in sizes[1:] if 2 * max(ranks, mine) > available_memory() else sizes:
        try:
            outcome = run_ab(
                _plan_in_float64(plan, contenders, batch_size),
                lambda text: say(f"in float64: {text}"),
                lambda _: None,
            )
        except (ClusterError, RequestError, MemoryError, OutOfMemoryError) as error:
            say(f"in float64, {batch_size} roots a rank: {error}")
        else:
            return {engine.engine: engine for engine in outcome.parity}
    return {}


def _plan_in_float64(plan: Plan, contenders: tuple[Contender, ...], batch_size: int) -> Plan:
    """Plan one round in float64 over the iterations that float32 compares."""
    iterations = min(plan.iterations, COMPARED_LOSSES)
    changes = {
        "dtype": "float64",
        "batch_size": batch_size,
        "epochs": min(plan.config.train.epochs, -(-COMPARED_LOSSES // iterations)),
        "iterations_per_epoch": iterations,
        "evaluate_every": 0,
    }
    exact = replace(
        plan,
        config=change_config(plan.config, train=changes),
        contenders=contenders,
        out=plan.out / f"float64-{batch_size}",
        rounds=1,
        iterations=iterations,
        guests=(),
    )
    exact.write_config()
    return exact


def _measure_spread(plan: Plan, contender: Contender, engine: EngineParity) -> float:
    """Return the spread of one process in the iteration in which an engine differs most."""
    recorded = read_recorded(plan.run_dir(contender, 0) / GRADIENTS_FOLDER)
    differences = [moment.largest for moment in engine.gradients]
    moment = recorded[differences.index(max(differences))]
    return measure_spread(_make_reference(plan, contender.configure(plan.config)), moment)


def _tell_parity(engine: EngineParity) -> str:
    """Write one line about the differences of an engine."""
    parts = [f"parity of {engine.engine}: gradients within {engine.gradient_difference:.1e}"]
    if engine.spread is not None:
        parts[0] += f" (one process in {ORDERS} orders of summation: {engine.spread:.1e})"
    parts.append(f"losses within {engine.loss_difference:.1e}")
    if engine.in_float64 is not None:
        again = engine.in_float64
        parts.append(
            f"in float64 on {again.roots} roots {again.gradient_difference:.1e} and "
            f"{again.loss_difference:.1e}"
        )
    return ", ".join(parts)


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
    final = _settle(plan, final, entries, say)
    results = assemble(plan.config, plan.graph, entries, final, describe_reference(plan))
    return Outcome(results, tuple(final))


def describe_reference(plan: Plan) -> str:
    """Say in words what gradients and losses were compared with."""
    dtype = plan.config.train.dtype
    moments = ", ".join(str(step) for step in plan.recorded_iterations)
    iterations = f"the first {COMPARED_LOSSES}" if dtype == "float32" else "all"
    return (
        f"gradients: one process, {dtype}, all roots of the global batch in one pass, at "
        f"iterations {moments} of the first round; losses: the same, and "
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
