"""The page: one file that loads no other, made from the templates beside this module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from hopper.bench.emulate.reconcile import TOLERANCE, reconcile
from hopper.bench.layer_work import unevenness
from hopper.bench.parity import LIMITS
from hopper.bench.report import charts, units
from hopper.bench.report.findings import find, headline
from hopper.bench.report.records import Run
from hopper.bench.report.source import Source
from hopper.bench.statistics import measured_epochs
from hopper.paired_ratio import CONFIDENCE
from hopper.palette import CAUSES, COLOURS, STAGES, shades_of_engines, text_on

_ORIGINS: Final = {"local": "green", "cached": "orange", "reused": "sky", "fetched": "blue"}
"""Colours of input rows, by where they came from."""


def page(source: Source) -> str:
    """Write the whole HTML document."""
    environment = Environment(
        loader=PackageLoader("hopper.bench.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "quantity": units.quantity, "score": units.score, "difference": units.difference,
        "things": units.things, "tell": _tell,
    }  # fmt: skip
    text = environment.get_template("report.html").render(_content(source))
    # ASCII alone: the page reads the same whatever encoding a server or an editor assumes.
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _content(source: Source) -> dict[str, Any]:
    """Return what the template shows."""
    runs, summary, by_name, findings = (
        source.results.runs,
        source.summary,
        source.by_name,
        find(source),
    )
    engines = {name: of_name[0].engine for name, of_name in by_name.items()}
    labels = {name: name if name.startswith(e) else e for name, e in engines.items()}
    shades = shades_of_engines(list(labels.values()))
    metrics = [m for run in runs for scores in run.scores.values() for m in scores]
    return {
        "source": source, "results": source.results, "summary": summary, "findings": findings,
        "ab": summary is None, "by_name": by_name, "first": runs[0], "charts": charts,
        "headline": headline(source, findings),
        "data": str(source.results.dataset.get("name", "")) or source.folder.resolve().name,
        "measured": len(measured_epochs(runs[0].model_dump())),
        "metrics": list(dict.fromkeys([source.metric, *metrics])),
        "losses": _losses(source),
        "score_curves": lambda metric: _score_curves(source, metric),
        "shades": {name: shades[label] for name, label in labels.items()},
        "epoch_seconds": {name: list(map(_mean_seconds, of)) for name, of in by_name.items()},
        "stage_seconds": {name: f.stage_seconds for name, f in findings.figures.items()},
        "sent": {name: f.bytes for name, f in findings.figures.items()},
        "rows": {name: _origins(f.rows) for name, f in findings.figures.items()},
        "hit_rates": {name: _hit_rates(of_name) for name, of_name in by_name.items()},
        "interfaces": reconcile([run.model_dump() | {"label": run.name} for run in runs]),
        "limits": {what: limits[findings.dtype] for what, limits in LIMITS.items()},
        "colours": {n: (c, text_on(c.light), text_on(c.dark)) for n, c in COLOURS.items()},
        "causes": CAUSES, "stages": STAGES, "origins": _ORIGINS, "unevenness": unevenness,
        "tolerance": TOLERANCE, "confidence": CONFIDENCE,
    }  # fmt: skip


def _losses(source: Source) -> tuple[str, dict[str, list[float]]]:
    """Return losses of each iteration, or of each epoch where not all iterations are known."""
    learning = source.learning
    if all(len(e.iteration_losses) == e.iterations for es in learning.values() for e in es):
        losses = {n: [x for e in es for x in e.iteration_losses] for n, es in learning.items()}
        return "iteration", losses
    return "epoch", {name: [epoch.loss for epoch in epochs] for name, epochs in learning.items()}


def _score_curves(source: Source, metric: str) -> dict[str, list[float | None]]:
    """Return validation scores by epoch of every name that has them."""
    main = metric == source.metric
    curves = {
        name: [epoch.scores.get(metric, epoch.val if main else None) for epoch in epochs]
        for name, epochs in source.learning.items()
    }
    return {name: values for name, values in curves.items() if any(v is not None for v in values)}


def _origins(rows: Mapping[str, float]) -> dict[str, float]:
    """Divide input rows. What another group needs again is fetched once, and so reused."""
    kinds = ("local", "remote", "remote_unique", "cached")
    local, remote, fetched, cached = (rows.get(kind, 0.0) for kind in kinds)
    reused = max(0.0, remote - fetched - cached)
    return {"local": local, "cached": cached, "reused": reused, "fetched": fetched}


def _hit_rates(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return the share of lookups in a cache that found their row, by node type."""
    sums: dict[str, tuple[float, float]] = {}
    for epoch in (epoch for run in runs for epoch in run.epochs):
        for kind, (hits, misses) in epoch.lookups.items():
            before = sums.get(kind, (0.0, 0.0))
            sums[kind] = before[0] + hits, before[1] + hits + misses
    return {kind: hits / asked if asked else None for kind, (hits, asked) in sums.items()}


def _mean_seconds(run: Run) -> float:
    return fmean(float(epoch["seconds"]) for epoch in measured_epochs(run.model_dump()))


def _tell(value: Any) -> str:
    """Write a value of a file in a line."""
    if isinstance(value, Mapping):
        told = ((key, _tell(entry)) for key, entry in value.items() if entry is not None)
        return ", ".join(f"{key} {words}" for key, words in told)
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
