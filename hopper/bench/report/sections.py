"""The sections of the page. A part is None if there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median

from hopper.bench.emulate.reconcile import TOLERANCE
from hopper.bench.layer_work import unevenness
from hopper.bench.parity import COMPARED_LOSSES
from hopper.bench.report import bars, schedule_chart, units
from hopper.bench.report.bars import Part, Row, figure
from hopper.bench.report.colours import colour_classes
from hopper.bench.report.curves import Curve, curves_figure
from hopper.bench.report.findings import Findings
from hopper.bench.report.headline import ratios_section
from hopper.bench.report.markup import Child, Markup, tag
from hopper.bench.report.scores import final_scores, run_scores
from hopper.bench.report.setting import is_number, setting
from hopper.bench.report.source import Run, Source
from hopper.bench.report.tables import Cell, table
from hopper.bench.statistics import measured_epochs, sent_bytes
from hopper.run_log import STAGES
from hopper.traffic import CAUSES

Section = tuple[str, str, list[Child]]
"""Identifier, heading and content."""


def all_sections(source: Source, findings: Findings) -> list[Section]:
    """Make all sections that have something to show, in the order of the page."""
    learned = ("learning", "Learning", learning(source, findings))
    is_run = source.kind == "run"
    sections = [
        ("scores", "Scores", run_scores(source)),
        *([learned] if is_run else []),
        ("time", "Time", time(source, findings)),
        ("traffic", "Traffic between servers", traffic(source, findings)),
        *([] if is_run else [learned]),
        ("time-steps", "Time steps as they ran", time_steps(source)),
        ("evidence", "Locality, parity and memory", evidence(source, findings)),
        ("setting", "Setting", setting(source)),
    ]
    return [section for section in sections if any(child is not None for child in section[2])]


def time(source: Source, findings: Findings) -> list[Child]:
    """Show speed-ups, epoch times with their rounds, and where a rank's time goes."""
    rows, colours = [], colour_classes(source)
    for name in source.names:
        points = [(f"round {run.round + 1}", _mean_seconds(run)) for run in source.runs_of(name)]
        if source.kind == "run":
            points = [
                (f"epoch {i}", epoch.seconds)
                for i, epoch in enumerate(source.runs_of(name)[0].epochs)
            ]
        rows.append(Row(name, colours[name], findings.figures[name].seconds, points))
    what, dots = "median over rounds", "each round"
    if source.kind == "run":
        what, dots = "mean of the measured epochs", "each epoch"
    times = bars.dotted_bars(
        "Epoch time",
        f"The slowest rank's; bar: {what}; dots: {dots}.",
        rows, units.seconds, "epoch",
    )  # fmt: skip
    stages = bars.stacked_bars(
        "Where a rank's time goes",
        "An epoch, mean over ranks; grey is waiting for other ranks.",
        {
            name: [Part(stage, stage, figures.stage_seconds[stage]) for stage in STAGES]
            for name, figures in findings.figures.items()
        },
        units.seconds, "engine",
    )  # fmt: skip
    return [ratios_section(source, findings), tag("div", times, stages, class_="pair")]


def traffic(source: Source, findings: Findings) -> list[Child]:
    """Show bytes by cause, rows by where they came from, and the counters of interfaces."""
    causes = bars.stacked_bars(
        "Bytes by cause",
        "An epoch, summed over all ranks.",
        {
            name: [Part(cause, cause, figures.bytes[cause]) for cause in CAUSES]
            for name, figures in findings.figures.items()
        },
        units.size, "engine",
    )  # fmt: skip
    rows = bars.stacked_bars(
        "Input rows by where they came from",
        "An epoch, summed over all ranks. Reused: needed again by another group and fetched once.",
        {name: _rows(figures.rows) for name, figures in findings.figures.items()},
        units.count, "engine",
    )  # fmt: skip
    parts: list[Child] = [tag("div", causes, rows, class_="pair")]
    if any(epoch.lookups for run in source.results.runs for epoch in run.epochs):
        parts.append(_hit_rates(source))
    return [*parts, _interfaces(source)]


def _hit_rates(source: Source) -> Child:
    """Show the share of lookups in a cache that found their row."""
    by_engine: dict[str, dict[str, list[float]]] = {}
    for name in source.names:
        sums = by_engine.setdefault(name, {})
        for run in source.runs_of(name):
            for epoch in run.epochs:
                for node_type, (hits, misses) in epoch.lookups.items():
                    type_sums = sums.setdefault(node_type, [0.0, 0.0])
                    sums[node_type] = [type_sums[0] + hits, type_sums[1] + misses]
    types = sorted({node_type for sums in by_engine.values() for node_type in sums})
    rows: list[list[Child | Cell]] = []
    for name, sums in by_engine.items():
        if sums:
            all_types = [sum(column) for column in zip(*sums.values(), strict=True)]
            columns = [all_types, *(sums.get(node_type, [0.0, 0.0]) for node_type in types)]
            rows.append([name, *(Cell(_hit_rate(*column)) for column in columns)])
    return figure(
        "Hit rates of caches",
        "Of the rows that were looked for, those found; all epochs of all rounds.",
        table("Hit rates by node type", ["engine", "all types", *types], rows, hidden=False),
    )


def _hit_rate(hits: float, misses: float) -> str:
    return units.share(hits / (hits + misses)) if hits + misses else "none asked"


def _rows(rows: Mapping[str, float]) -> list[Part]:
    local, remote, fetched, cached = (
        rows[kind] for kind in ("local", "remote", "remote_unique", "cached")
    )
    return [
        Part("local", "local", local),
        Part("cached", "cached", cached),
        Part("reused", "remote, reused", max(0.0, remote - fetched - cached)),
        Part("fetched", "remote, fetched", fetched),
    ]


def _interfaces(source: Source) -> Child:
    """Compare what network interfaces counted with what was counted by cause."""
    rows: list[list[Child | Cell]] = []
    for name in source.names:
        runs = [run for run in source.runs_of(name) if run.nic_bytes]
        servers = [
            [float(count) for count in run.nic_bytes or [] if is_number(count)] for run in runs
        ]
        if not any(servers):
            continue
        measured = fmean(sum(server_bytes) for server_bytes in servers)
        counted_bytes = fmean(
            sum(sent_bytes(epoch.model_dump()) for epoch in run.epochs) for run in runs
        )
        ratio = Cell("nothing counted", "bad")
        if counted_bytes:
            agrees = abs(measured / counted_bytes - 1) <= TOLERANCE
            ratio = Cell(f"{measured / counted_bytes:.3f}", "good" if agrees else "bad")
        means = [units.size(fmean(server_bytes)) for server_bytes in zip(*servers, strict=False)]
        rows.append([name, Cell(units.size(counted_bytes)), Cell(units.size(measured)), ratio,
                     *map(Cell, means)])  # fmt: skip
    if not rows:
        text = "Network interfaces were not counted: that takes emulated hosts (--emulate)."
        return tag("p", text, class_="note")
    most = max(len(row) for row in rows)
    rows = [row + [Cell("")] * (most - len(row)) for row in rows]
    head = ["engine", "counted by cause", "by interfaces", "ratio"]
    head += [f"server {server}" for server in range(most - len(head))]
    return figure(
        "Counted by network interfaces",
        "A run's training, mean over rounds, beside what was counted by cause: within "
        f"{TOLERANCE:.0%}, or red. Interfaces count headers and acknowledgements too.",
        table("Bytes by cause and by interfaces", head, rows),
    )


def learning(source: Source, findings: Findings) -> list[Child]:
    """Show the losses of the first round in one plot, and the scores of an A/B."""
    dtype = str(source.results.config.get("train", {}).get("dtype", "float32"))
    last = COMPARED_LOSSES if dtype == "float32" else float("inf")
    limit: tuple[float, float] | None = (findings.loss_limit, last)
    per_iteration = all(
        len(epoch.iteration_losses) == epoch.iterations
        for epochs in source.learning.values() for epoch in epochs
    )  # fmt: skip
    losses, scores, colours = [], [], colour_classes(source)
    for name, epochs in source.learning.items():
        exact = name not in findings.approximate
        values = [epoch.loss for epoch in epochs]
        if per_iteration:
            values = [loss for epoch in epochs for loss in epoch.iteration_losses]
        losses.append(Curve(name, colours[name], range(len(values)), values, exact))
        scored = [(i, epoch.val) for i, epoch in enumerate(epochs) if epoch.val is not None]
        scores.append(
            Curve(name, colours[name], [i for i, _ in scored], [v for _, v in scored], exact)
        )
    unit = "iteration" if per_iteration else "epoch"
    limit = limit if per_iteration else None
    if source.kind == "run":
        # A single run's scores are in another section.
        return [curves_figure("Training loss", f"Per {unit}.", losses, unit)]
    subtitle = f"Per {unit}, first round. Curves that coincide share one line in turns."
    charts: list[Child] = [curves_figure("Training loss", subtitle, losses, unit, limit=limit)]
    if any(curve.values for curve in scores):
        charts.append(
            curves_figure(f"Validation {source.metric}", "After each epoch, first round.",
                          [curve for curve in scores if curve.values], "epoch")
        )  # fmt: skip
    return [tag("div", charts, class_="pair"), final_scores(source)]


def time_steps(source: Source) -> list[Child]:
    """Show what every rank did when, in the first iterations of the last epoch."""
    if not source.timelines:
        return [
            tag("p", "No run's spans were found, so the time steps cannot be drawn; what is "
                "missing is listed below, under Setting.", class_="note")
        ]  # fmt: skip
    text = (
        "Drawn from the spans that ranks wrote: the first iterations of the last epoch, first "
        "round. Thin grey is waiting for other ranks; lines are models passing on."
    )
    return [
        tag("p", text, class_="section-lead"),
        schedule_chart.key(source.timelines),
        schedule_chart.charts(source.timelines),
    ]


def evidence(source: Source, findings: Findings) -> list[Child]:
    """Show locality of the graph, parity, the work of each rank, and peak memory."""
    panels = [
        panel for panel in (_locality(source), _parity(source, findings)) if panel is not None
    ]
    return [tag("div", panels, class_="pair") if panels else None, *_work(source), _memory(source)]


def _locality(source: Source) -> Child:
    partition = source.results.partition
    locality = partition.get("locality") or {}
    names = {"R_micro": locality.get("micrograph"), "R_sub": locality.get("subgraph"),
             "edges cut": partition.get("edge_cut")}  # fmt: skip
    shares = {name: float(value) for name, value in names.items() if value is not None}
    if not shares:
        return None
    rows = [[name, Cell(units.share(value)), _meter(value)] for name, value in shares.items()]
    caption = f"{partition.get('method', '?')} over {partition.get('servers', '?')} servers"
    return figure(
        "Locality",
        "Share of a root's micrograph (R_micro) and of its mini-batch's subgraph (R_sub) that is "
        "stored with the root.",
        table(caption, ["", "share", ""], rows, hidden=False),
    )


def _meter(value: float) -> Markup:
    bar = tag("span", style=f"width:{100 * min(max(value, 0.0), 1.0):.1f}%")
    return tag("span", bar, class_="meter", aria_hidden="true")


def _parity(source: Source, findings: Findings) -> Child:
    if source.results.parity is None:
        return None
    rows = []
    for name in source.names:
        is_exact = name not in findings.approximate
        sound = (
            name not in findings.wrong_gradients,
            (loss := findings.losses[name]) is not None and name not in findings.wrong_losses,
        )
        cells = [
            Cell(
                units.difference(value),
                "" if name in findings.rounding else _verdict(value, passes, is_exact),
            )
            for value, passes in zip((findings.gradients[name], loss), sound, strict=True)
        ]
        in_float64 = findings.in_float64.get(name)
        what = "exact" if is_exact else "approximate"
        if in_float64 is not None:
            what += f"; gradients in float64 {units.difference(in_float64)}"
        if name in findings.spread:
            what += f"; one process in other orders {units.difference(findings.spread[name])}"
        if name in findings.losses_in_float64:
            what += f"; losses in float64 {units.difference(findings.losses_in_float64[name])}"
        rows.append([name, *cells, what])
    reference = source.results.parity.reference
    return figure(
        "Parity",
        f"Largest relative differences. {reference[:1].upper()}{reference[1:]}.",
        table(f"Limits: gradients {findings.gradient_limit:g}, losses {findings.loss_limit:g}; "
              "float64 decides on float32 beyond them",
              ["engine", "gradients", "losses", ""], rows, hidden=False),
    )  # fmt: skip


def _verdict(value: float | None, passes: bool, is_exact: bool) -> str:
    if value is None:
        return "bad" if is_exact else ""
    return "good" if passes else "bad"


def _work(source: Source) -> list[Child]:
    """Show how evenly an engine that divides layers among ranks has divided their edges."""
    charts: list[Child] = []
    for name, layers in source.work.items():
        if not layers:
            continue
        rows = []
        for number, layer in enumerate(layers, 1):
            most = unevenness(layer.edges)
            unevenness_text = "–" if most is None else f"{most:.2f}"
            rows.append([f"layer {number}", *(Cell(units.count(edges)) for edges in layer.edges),
                         Cell(unevenness_text), Cell(units.count(sum(layer.own))),
                         Cell(units.count(sum(layer.sent)))])  # fmt: skip
        ranks = [f"rank {rank}" for rank in range(len(layers[0].edges))]
        head = ["", *ranks, "busiest over mean", "rows projected, all", "rows sent, all"]
        charts.append(
            figure(
                f"Work of each rank: {name}",
                "Edges that a rank aggregates, layer by layer: means of an iteration, first round.",
                table(f"Edges by layer and rank: {name}", head, rows),
            )
        )
    return charts


def _memory(source: Source) -> Child:
    rows, colours = [], colour_classes(source)
    for name in source.names:
        runs = [run.peak_rss_mib for run in source.runs_of(name) if run.peak_rss_mib]
        if runs:
            ranks = [median(values) for values in zip(*runs, strict=False)]
            points = [(f"rank {rank}", value) for rank, value in enumerate(ranks)]
            rows.append(Row(name, colours[name], max(ranks), points))
    if not rows:
        return None
    subtitle = "Resident memory; bar: the largest rank, dots: each rank, median over rounds."
    return bars.dotted_bars("Peak memory of a rank", subtitle, rows, units.memory, "largest")


def _mean_seconds(run: Run) -> float:
    return fmean(float(epoch["seconds"]) for epoch in measured_epochs(run.model_dump()))
