"""The sections of the page, each from the source alone; None where there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

from hopper.bench.report import bars, schedule_chart, units
from hopper.bench.report.bars import Part, Row, figure
from hopper.bench.report.curves import Curve, curves_figure
from hopper.bench.report.findings import Findings
from hopper.bench.report.headline import ratios_section
from hopper.bench.report.markup import Child, Markup, tag
from hopper.bench.report.source import Run, Source
from hopper.bench.report.tables import Cell, config_text, facts, options_text, table
from hopper.bench.parity import COMPARED_LOSSES
from hopper.bench.statistics import measured_epochs
from hopper.run_log import STAGES
from hopper.traffic import CAUSES

Section = tuple[str, str, list[Child]]
"""identifier, heading, content"""

_PALETTE: Final = 8
_MOST_ROWS: Final = 1000


def all_sections(source: Source, found: Findings) -> list[Section]:
    """Those that have something to show, in the page's order."""
    sections = [
        ("time", "Time", time(source, found)),
        ("traffic", "Traffic between servers", traffic(source, found)),
        ("learning", "Learning", learning(source, found)),
        ("time-steps", "Time steps as they ran", time_steps(source)),
        ("evidence", "Locality, parity and memory", evidence(source, found)),
        ("setting", "Setting", setting(source)),
    ]
    return [section for section in sections if any(each is not None for each in section[2])]


def time(source: Source, found: Findings) -> list[Child]:
    """Speed-ups, epoch times with their rounds, and where a rank's time goes."""
    rows = []
    for index, name in enumerate(source.names):
        points = [(f"round {run.round + 1}", _mean_seconds(run)) for run in source.runs_of(name)]
        if source.kind == "run":
            points = [(f"epoch {i}", each.seconds) for i, each in enumerate(source.runs_of(name)[0].epochs)]
        rows.append(Row(name, index % _PALETTE, found.figures[name].seconds, points))
    what = "median over rounds" if source.kind == "ab" else "mean of the measured epochs"
    epochs = bars.dotted(
        "Epoch time",
        f"The slowest rank's; bar: {what}; dots: {'each round' if source.kind == 'ab' else 'each epoch'}.",
        rows, units.seconds, "epoch",
    )  # fmt: skip
    stages = bars.stacked(
        "Where a rank's time goes",
        "An epoch, mean over ranks; grey is waiting for other ranks.",
        {
            name: [Part(stage, stage, own.stage_seconds[stage]) for stage in STAGES]
            for name, own in found.figures.items()
        },
        units.seconds, "engine",
    )  # fmt: skip
    ratios = ratios_section(source, found) or []
    return [*ratios, tag("div", epochs, stages, class_="pair")]


def traffic(source: Source, found: Findings) -> list[Child]:
    """Bytes by cause, rows by where they came from, and the interfaces' counters."""
    causes = bars.stacked(
        "Bytes by cause",
        "An epoch, summed over all ranks.",
        {
            name: [Part(cause, cause, own.bytes[cause]) for cause in CAUSES]
            for name, own in found.figures.items()
        },
        units.size, "engine",
    )  # fmt: skip
    rows = bars.stacked(
        "Input rows by where they came from",
        "An epoch, summed over all ranks. Reused: needed again by another group and fetched once.",
        {name: _rows(own.rows) for name, own in found.figures.items()},
        units.count, "engine",
    )  # fmt: skip
    return [tag("div", causes, rows, class_="pair"), _interfaces(source)]


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
    """What network interfaces counted, beside what was counted by cause."""
    rows = []
    for name in source.names:
        for run in source.runs_of(name):
            if run.nic_bytes is None or not all(_is_number(each) for each in run.nic_bytes):
                continue
            seen = sum(float(each) for each in run.nic_bytes)
            counted = sum(sum(epoch.bytes.values()) for epoch in run.epochs)
            ratio = f"{seen / counted:.3f}" if counted else "–"
            servers = ", ".join(units.size(float(each)) for each in run.nic_bytes)
            rows.append([name, Cell(run.round + 1), Cell(units.size(counted)),
                         Cell(units.size(seen)), Cell(ratio), servers])  # fmt: skip
    if not rows:
        text = "Network interfaces were not counted: ranks and servers talked without emulated links."
        return tag("p", text, class_="note")
    head = ["engine", "round", "counted by cause", "by interfaces", "ratio", "by server"]
    return figure("Counted by network interfaces", "A whole run, beside what was counted by cause.",
                  table("Bytes by cause and by interfaces", head, rows))  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def learning(source: Source, found: Findings) -> list[Child]:
    """Losses and scores of the first round, laid over each other, and final scores."""
    dtype = str(source.results.config.get("train", {}).get("dtype", "float32"))
    compared = COMPARED_LOSSES.get(dtype)
    limit = (found.loss_limit, float("inf") if compared is None else float(compared))
    per_iteration = all(
        len(epoch.iteration_losses) == epoch.iterations
        for epochs in source.learning.values() for epoch in epochs
    )  # fmt: skip
    losses, scores = [], []
    for index, (name, epochs) in enumerate(source.learning.items()):
        exact = name not in found.approximate
        values = [epoch.loss for epoch in epochs]
        if per_iteration:
            values = [loss for epoch in epochs for loss in epoch.iteration_losses]
        losses.append(Curve(name, index % _PALETTE, range(len(values)), values, exact))
        scored = [(i, epoch.val) for i, epoch in enumerate(epochs) if epoch.val is not None]
        scores.append(
            Curve(name, index % _PALETTE, [i for i, _ in scored], [v for _, v in scored], exact)
        )
    unit = "iteration" if per_iteration else "epoch"
    both: list[Child] = [
        curves_figure("Training loss", f"Per {unit}, first round. Curves that coincide share one "
                      "line in turns.", losses, unit, limit=limit if per_iteration else None)
    ]  # fmt: skip
    if any(curve.values for curve in scores):
        both.append(
            curves_figure(f"Validation {source.metric}", "After each epoch, first round.",
                          [curve for curve in scores if curve.values], "epoch")
        )  # fmt: skip
    return [tag("div", both, class_="pair"), _scores(source)]


def _scores(source: Source) -> Child:
    rows = []
    for name in source.names:
        runs = source.runs_of(name)
        told = [[run.accuracy.get(split) for run in runs] for split in ("val", "test")]
        if any(value is not None for values in told for value in values):
            rows.append([name, *(Cell(_spread(values)) for values in told)])
    if not rows:
        return tag("p", "Scores were not measured (train.evaluate_every = 0).", class_="note")
    head = ["engine", "best validation", "test"]
    caption = "Mean over rounds; their range where they differ"
    return figure(f"Final {source.metric}", "", table(caption, head, rows, hidden=False))


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    low, high = min(known), max(known)
    spread = f" ({low:.4f} to {high:.4f})" if high > low else ""
    return f"{fmean(known):.4f}{spread}"


def time_steps(source: Source) -> list[Child]:
    """What every rank did when, in the first iterations of the last epoch."""
    if not source.timelines:
        return [None]
    text = (
        "Drawn from the spans that ranks wrote: the first iterations of the last epoch, first "
        "round. Thin grey is waiting for other ranks; lines are models passing on."
    )
    return [
        tag("p", text, class_="section-lead"),
        schedule_chart.key(source.timelines),
        schedule_chart.charts(source.timelines),
    ]


def evidence(source: Source, found: Findings) -> list[Child]:
    """How local the graph is, how equal the gradients are, how much memory was needed."""
    first = [each for each in (_locality(source), _parity(source, found)) if each is not None]
    return [tag("div", first, class_="pair") if first else None, _memory(source)]


def _locality(source: Source) -> Child:
    partition = source.results.partition
    measured = partition.get("locality") or {}
    names = {"R_micro": measured.get("micrograph"), "R_sub": measured.get("subgraph"),
             "edges cut": partition.get("edge_cut")}  # fmt: skip
    known = {name: float(value) for name, value in names.items() if _is_number(value)}
    if not known:
        return None
    rows = [[name, Cell(units.share(value)), _meter(value)] for name, value in known.items()]
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


def _parity(source: Source, found: Findings) -> Child:
    if source.results.parity is None:
        return None
    rows = []
    for name in source.names:
        cells = [
            Cell(units.difference(value), "" if name in found.approximate else _verdict(value, limit))
            for value, limit in ((found.gradients[name], found.gradient_limit),
                                 (found.losses[name], found.loss_limit))
        ]  # fmt: skip
        rows.append([name, *cells, "approximate" if name in found.approximate else "exact"])
    reference = source.results.parity.reference
    return figure(
        "Parity",
        f"Largest relative differences. {reference[:1].upper()}{reference[1:]}.",
        table(f"Limits: gradients {found.gradient_limit:g}, losses {found.loss_limit:g}",
              ["engine", "gradients", "losses", ""], rows, hidden=False),
    )  # fmt: skip


def _verdict(value: float | None, limit: float) -> str:
    return "good" if value is not None and value <= limit else "bad"


def _memory(source: Source) -> Child:
    rows = []
    for index, name in enumerate(source.names):
        runs = [run.peak_rss_mib for run in source.runs_of(name) if run.peak_rss_mib]
        if runs:
            ranks = [median(each) for each in zip(*runs, strict=False)]
            points = [(f"rank {rank}", value) for rank, value in enumerate(ranks)]
            rows.append(Row(name, index % _PALETTE, max(ranks), points))
    if not rows:
        return None
    subtitle = "Resident memory; bar: the largest rank, dots: each rank, median over rounds."
    return bars.dotted("Peak memory of a rank", subtitle, rows, units.memory, "largest")


def setting(source: Source) -> list[Child]:
    """Machine, graph, versions, configuration, and every round's numbers."""
    results = source.results
    found: dict[str, Child] = {
        "machine": _machine(results.machine),
        "graph": _graph(results.dataset),
        "graph's source": str(results.dataset.get("source", "")),
        "commit": tag("code", results.commit) if results.commit else "",
        "versions": ", ".join(f"{k} {v}" for k, v in results.versions.items() if v is not None),
        **{f"options of {name}": options_text(source.runs_of(name)[0].options)
           for name in source.names},
    }  # fmt: skip
    shown = {key: value for key, value in found.items() if value}
    missing = [tag("li", each) for each in source.missing]
    return [
        facts("What was measured on what", shown) if shown else None,
        tag("div", tag("h3", "Not shown"), tag("ul", missing), class_="note") if missing else None,
        tag("details", tag("summary", "Configuration"),
            tag("pre", config_text(results.config), tabindex=0)) if results.config else None,
        tag("details", tag("summary", "Every round and epoch"), _raw(source)),
    ]  # fmt: skip


def _machine(machine: Mapping[str, Any]) -> str:
    told = [str(machine.get("cpu", ""))]
    told += [f"{machine[k]} {w}" for k, w in (("cores", "cores"), ("memory_gib", "GiB")) if k in machine]
    return ", ".join(each for each in [*told, str(machine.get("kernel", ""))] if each)


def _graph(dataset: Mapping[str, Any]) -> str:
    types, relations = dataset.get("node_types"), dataset.get("relations")
    told = [str(dataset.get("name", ""))]
    if isinstance(types, Mapping):
        told += [f"{name}: {kind.get('count', 0):,} nodes, {kind.get('feature_dim') or 'no'} features"
                 for name, kind in types.items() if isinstance(kind, Mapping)]  # fmt: skip
    if isinstance(relations, Mapping):
        told += [f"{name}: {count:,} edges" for name, count in relations.items() if _is_number(count)]
    return "; ".join(each for each in told if each)


def _raw(source: Source) -> Markup:
    head = ["engine", "round", "epoch", "seconds", "loss", *(f"{cause}, B" for cause in CAUSES),
            *(f"{stage}, s" for stage in STAGES)]  # fmt: skip
    rows = [
        [run.name, Cell(run.round + 1), Cell(index), Cell(f"{epoch.seconds:.4f}"),
         Cell(f"{epoch.loss:.6g}"), *(Cell(f"{epoch.bytes[c]:,.0f}") for c in CAUSES),
         *(Cell(f"{epoch.stage_seconds[s]:.4f}") for s in STAGES)]
        for run in source.results.runs
        for index, epoch in enumerate(run.epochs)
    ]  # fmt: skip
    caption = "Every round and epoch; bytes summed over ranks, stages as mean over ranks"
    if len(rows) > _MOST_ROWS:
        caption += f"; the first {_MOST_ROWS} of {len(rows)} lines"
    return table(caption, head, rows[:_MOST_ROWS], hidden=False)


def _mean_seconds(run: Run) -> float:
    return fmean(float(epoch["seconds"]) for epoch in measured_epochs(run.model_dump()))
