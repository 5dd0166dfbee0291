"""The page: one file that loads no other, made from the templates beside this module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from hopper.bench.emulate.reconcile import TOLERANCE, reconcile
from hopper.bench.layer_work import unevenness
from hopper.bench.parity import LIMITS
from hopper.bench.report import charts, units
from hopper.bench.report.findings import find, headline
from hopper.bench.report.source import Source
from hopper.bench.statistics import measured_epochs
from hopper.display.palette import CAUSES, COLOURS, STAGES, shades_of_engines, text_on, tint_percent
from hopper.timing.paired_ratio import CONFIDENCE

_ORIGINS: Final = {"local": "green", "cached": "orange", "reused": "sky", "fetched": "blue"}


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
    runs, summary, by_name = source.results.runs, source.summary, source.by_name
    plain = source.plain_runs
    findings = find(source)
    engines = {name: of_name[0].engine for name, of_name in by_name.items()}
    labels = {name: name if name.startswith(e) else e for name, e in engines.items()}
    shades = shades_of_engines(list(labels.values()))
    scored = (metric for run in runs for scores in run.scores.values() for metric in scores)
    metrics = list(dict.fromkeys([source.metric, *scored]))
    return {
        "source": source, "results": source.results, "summary": summary, "findings": findings,
        "ab": summary is None, "by_name": by_name, "first": runs[0], "charts": charts,
        "headline": headline(source, findings),
        "data": str(source.results.dataset.get("name", "")) or source.folder.resolve().name,
        "measured": len(measured_epochs(plain[0])),
        "metrics": metrics,
        "losses": _losses(source),
        "epoch_losses": {n: [e.loss for e in epochs] for n, epochs in source.learning.items()},
        "score_curves": {metric: _score_curves(source, metric) for metric in metrics},
        "shades": {
            name: (shades[label][0], tint_percent(shades[label][1]) / 100)
            for name, label in labels.items()
        },
        "epoch_seconds": {
            name: [
                fmean(epoch["seconds"] for epoch in measured_epochs(run))
                for run in sorted(plain, key=lambda run: run["round"])
                if run["label"] == name
            ]
            for name in by_name
        },
        "stage_seconds": {name: f.stage_seconds for name, f in findings.figures.items()},
        "sent": {name: f.bytes for name, f in findings.figures.items()},
        "rows": {name: _origins(f.rows) for name, f in findings.figures.items()},
        "interfaces": reconcile(plain),
        "limits": {what: limits[findings.dtype] for what, limits in LIMITS.items()},
        "colours": {n: (c, text_on(c.light), text_on(c.dark)) for n, c in COLOURS.items()},
        "causes": CAUSES, "stages": STAGES, "origins": _ORIGINS, "unevenness": unevenness,
        "tolerance": TOLERANCE, "confidence": CONFIDENCE,
    }  # fmt: skip


def _losses(source: Source) -> dict[str, list[float]]:
    """Return losses of each iteration. Empty where not all are known."""
    epochs = [epoch for of_name in source.learning.values() for epoch in of_name]
    if any(len(epoch.iteration_losses) != epoch.iterations for epoch in epochs):
        return {}
    return {n: [x for e in es for x in e.iteration_losses] for n, es in source.learning.items()}


def _score_curves(source: Source, metric: str) -> dict[str, list[float | None]]:
    """Return validation scores by epoch, None where it was not scored."""
    main = metric == source.metric
    return {
        name: [epoch.scores.get(metric, epoch.val if main else None) for epoch in epochs]
        for name, epochs in source.learning.items()
    }


def _origins(rows: Mapping[str, float]) -> dict[str, float]:
    """Divide input rows. What another group needs again is fetched once, and so reused."""
    kinds = ("local", "remote", "remote_unique", "cached")
    local, remote, fetched, cached = (rows.get(kind, 0.0) for kind in kinds)
    reused = max(0.0, remote - fetched - cached)
    return {"local": local, "cached": cached, "reused": reused, "fetched": fetched}


def _tell(value: Any) -> str:
    """Write a value of a file in a line."""
    if isinstance(value, Mapping):
        told = ((key, _tell(entry)) for key, entry in value.items() if entry is not None)
        return ", ".join(f"{key} {words}" for key, words in told)
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
