"""``hopper bench``: compares engines on identical seeds, roots and draws.

The engines take turns, round by round, and each run has its own processes. In the first round,
during the untimed first epoch, every engine records gradients. These are compared with the gradient
of a single process. Speed-ups are reported only if all engines computed the same.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import OutOfMemoryError

from cache_server.available_memory import available_memory
from hopper.bench.ab_plan import CONFIG_FILE, Plan
from hopper.bench.contender import Contender
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
from hopper.device.choice import choose_device
from hopper.engines.reference import Reference
from hopper.errors import ClusterError, RequestError
from hopper.features import open_graph
from hopper.train.results import GRADIENTS_FOLDER

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """The findings of an A/B: the content of results.json, the comparison of gradients and losses
    by contender, and the runs of guests."""

    results: dict[str, Any]
    parity: tuple[EngineParity, ...]
    guests: tuple[dict[str, Any], ...] = ()

    @property
    def problems(self) -> list[str]:
        """The reasons why no speed-up may be reported; empty if all engines computed the same."""
        return [problem for engine in self.parity for problem in engine.problems]


def run_ab(plan: Plan, say: Say, on_run: Callable[[str], None]) -> Outcome:
    """Carry out a plan: train all rounds, compare gradients after the first, and conclude.

    ``say`` prints a line about each run that has ended. ``on_run`` is called with the name of each
    run that begins.
    """
    entries: list[dict[str, Any]] = []
    summaries: list[Mapping[str, Any]] = []
    guests: list[dict[str, Any]] = []
    parity: tuple[EngineParity, ...] = ()
    for index in range(plan.rounds):
        for side in plan.order(index):
            on_run(f"{side.label}, round {index + 1} of {plan.rounds}")
            run_dir = plan.run_dir(side, index)
            if isinstance(side, Contender):
                recorded = json.dumps(plan.recorded_iterations if index == 0 else [])
                summary = plan.train(
                    f"{side.label}, round {index + 1}",
                    plan.out / CONFIG_FILE,
                    run_dir,
                    [*side.words, "--train.record_gradients", recorded],
                    plan.limit,
                )
                summaries.append(summary)
                entries.append(run_entry(plan.config, side, index, summary))
            else:
                assert plan.cluster is not None
                summary = side.train(plan.cluster, index, run_dir)
                guests.append({"label": side.label, "round": index, **summary})
            seconds = [f"{epoch['seconds']:.2f}" for epoch in summary["epochs"]]
            say(f"round {index + 1}/{plan.rounds}  {side.label}: {_describe_epochs(seconds)}")
        if index == 0:
            parity = check_parity(plan)
            for engine in parity:
                say(_describe_parity(engine))
    return replace(conclude(plan, parity, entries, summaries, say), guests=tuple(guests))


def _describe_epochs(seconds: Sequence[str]) -> str:
    """Say which epochs are measured, and why not the others."""
    if len(seconds) < 3:
        return f"epochs of {', '.join(seconds)} s"
    first, *measured, last = seconds
    return (
        f"{', '.join(measured)} s an epoch (not counted: the first, {first} s, which warms up, and "
        f"the last, {last} s, which prepares nothing for a next)"
    )


def check_parity(plan: Plan) -> tuple[EngineParity, ...]:
    """Compare the gradients and losses of the first round with those of a single process.

    An engine with batches of its own is compared on these batches. An engine that rounds on purpose
    is compared but only has to be near.
    """
    references: dict[tuple[str, str], Reference] = {}
    parity = []
    for contender in plan.contenders:
        label, config = contender.label, contender.configure(plan.config)
        rounds = contender.rounds(plan.config)
        batches = "shared" if rounds or contender.exact(plan.config) else label
        # Learnable rows are named by global ids, which differ between divisions of the graph.
        key = batches, config.data.partitioned
        if key not in references:
            references[key] = _make_reference(plan, config)
        recorded = read_recorded(plan.run_dir(contender, 0) / GRADIENTS_FOLDER)
        steps = [moment.step for moment in recorded]
        if steps != plan.recorded_iterations:
            raise RequestError(
                f"{label}: expected recorded gradients of iterations {plan.recorded_iterations}, "
                f"found {steps}"
            )
        engine = check_engine(label, references[key].dtype, references[key], recorded)
        parity.append(replace(engine, judged=not rounds))
    return tuple(parity)


def _make_reference(plan: Plan, config: Config) -> Reference:
    shares = config.cluster.share_gpus
    device = choose_device(config.train.device, local_ranks=plan.world, share_gpus=shares)
    return Reference(config, open_graph(config), plan.world, device)


def conclude(
    plan: Plan,
    parity: Sequence[EngineParity],
    entries: Sequence[dict[str, Any]],
    summaries: Sequence[Mapping[str, Any]],
    say: Say,
) -> Outcome:
    """Compare the losses of all runs, let float64 decide where float32 cannot, and assemble the
    results.

    The losses of exact engines are compared with each other, those of any other engine with its own
    first run.
    """
    curves: dict[str, list[list[float]]] = {}
    for entry, summary in zip(entries, summaries, strict=True):
        curve = [float(loss) for epoch in summary["epochs"] for loss in epoch["iteration_losses"]]
        curves.setdefault(entry["label"], []).append(curve)
    final = []
    for contender, engine in zip(plan.contenders, parity, strict=True):
        expected = curves[_loss_reference(plan, contender)][0]
        differences = [
            compare_losses(curve, expected, engine.dtype) for curve in curves[contender.label]
        ]
        final.append(replace(engine, loss_curve=worst(differences)))
    final = _settle(plan, final, entries, say)
    results = assemble(plan.config, plan.graph, entries, final, _describe_reference(plan))
    return Outcome(results, tuple(final))


def _loss_reference(plan: Plan, contender: Contender | None = None) -> str:
    """Return the label of the contender whose losses another's are compared with.

    It is the first exact contender for all exact ones, and a contender itself otherwise.
    """
    if contender is not None and not contender.exact(plan.config):
        return contender.label
    exact = (candidate for candidate in plan.contenders if candidate.exact(plan.config))
    return next(exact, plan.contenders[0]).label


def _settle(
    plan: Plan, parity: Sequence[EngineParity], entries: Sequence[Mapping[str, Any]], say: Say
) -> list[EngineParity]:
    """Let float64 decide about the engines that float32 cannot judge, and measure the spread of one
    process for them."""
    unsettled = [engine.engine for engine in parity if engine.needs_float64]
    if not unsettled:
        return list(parity)
    say(f"{', '.join(sorted(unsettled))}: more than 1e-5 apart in float32; float64 decides")
    in_float64 = _check_in_float64(plan, unsettled, entries, say)
    result = []
    for contender, engine in zip(plan.contenders, parity, strict=True):
        if engine.needs_float64:
            # The iteration in which it differs most.
            differences = [moment.largest for moment in engine.gradients]
            recorded = read_recorded(plan.run_dir(contender, 0) / GRADIENTS_FOLDER)
            moment = recorded[differences.index(max(differences))]
            reference = _make_reference(plan, contender.configure(plan.config))
            spread = measure_spread(reference, moment)
            engine = replace(engine, in_float64=in_float64.get(engine.engine), spread=spread)
            say(_describe_parity(engine))
        result.append(engine)
    return result


def _check_in_float64(
    plan: Plan, labels: Sequence[str], entries: Sequence[Mapping[str, Any]], say: Say
) -> dict[str, EngineParity]:
    """Compare contenders in float64, in an untimed A/B of one round.

    Where memory is short it has fewer roots. Where it fails, nothing is returned.
    """
    unsettled = [contender for contender in plan.contenders if contender.label in labels]
    needed = {*labels, *(_loss_reference(plan, contender) for contender in unsettled)}
    ranks = max(sum(entry["peak_rss_mib"]) for entry in entries) * 2**20
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    roots = plan.config.train.batch_size
    sizes = [roots, max(1, roots // 4)]
    iterations = min(plan.iterations, COMPARED_LOSSES)
    for batch_size in sizes[1:] if 2 * max(ranks, mine) > available_memory() else sizes:
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
            contenders=tuple(side for side in plan.contenders if side.label in needed),
            out=plan.out / f"float64-{batch_size}",
            rounds=1,
            iterations=iterations,
            guests=(),
        )
        exact.write_config()
        try:
            outcome = run_ab(exact, lambda text: say(f"in float64: {text}"), lambda _: None)
        except (ClusterError, RequestError, MemoryError, OutOfMemoryError) as error:
            say(f"in float64, {batch_size} roots a rank: {error}")
        else:
            return {engine.engine: engine for engine in outcome.parity}
    return {}


def _describe_parity(engine: EngineParity) -> str:
    """Write one line about the differences of an engine."""
    line = f"parity of {engine.engine}: gradients within {engine.gradient_difference:.1e}"
    if engine.spread is not None:
        line += f" (one process in {ORDERS} orders of summation: {engine.spread:.1e})"
    line += f", losses within {engine.loss_difference:.1e}"
    if (again := engine.in_float64) is not None:
        line += f", in float64 on {again.roots} roots {again.gradient_difference:.1e} and "
        line += f"{again.loss_difference:.1e}"
    return line


def _describe_reference(plan: Plan) -> str:
    """Say in words what gradients and losses were compared with."""
    dtype = plan.config.train.dtype
    moments = ", ".join(str(step) for step in plan.recorded_iterations)
    iterations = f"the first {COMPARED_LOSSES}" if dtype == "float32" else "all"
    return (
        f"gradients: one process, {dtype}, all roots of the global batch in one pass, at "
        f"iterations {moments} of the first round; losses: the same, and "
        f"{_loss_reference(plan)}'s over {iterations} iterations"
    )
