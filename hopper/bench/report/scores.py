"""What a model has learned: scores by epoch, at the end, and class by class."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from hopper.bench.report import units
from hopper.bench.report.bars import figure
from hopper.bench.report.curves import Curve, curves_figure
from hopper.bench.report.markup import Child, Markup, percent, tag
from hopper.bench.report.source import ByClass, Epoch, Source, Summary
from hopper.bench.report.tables import Cell, table

SPLITS: Final = {"val": "validation", "test": "test"}
UNKNOWN: Final = "–"
NOT_SCORED: Final = "Scores were not measured (train.evaluate_every = 0)."


def run_scores(source: Source) -> list[Child]:
    """A single run's scores: by epoch, at the end beside one answer for all, and by class."""
    summary = source.summary
    if summary is None:
        return []
    if not any(summary.scores.values()):
        return [tag("p", NOT_SCORED, class_="note")]
    by_epoch = [_by_epoch(summary, metric) for metric in _metrics(summary)]
    shown = [each for each in by_epoch if each is not None]
    found: list[Child] = [tag("div", [*shown, _at_the_end(summary)], class_="pair")]
    by_class = summary.by_class.get("test")
    return [*found, _class_table(by_class) if by_class is not None else None]


def final_scores(source: Source) -> Child:
    """The scores of the best models of an A/B, mean over rounds."""
    rows = []
    for name in source.names:
        runs = source.runs_of(name)
        told = [[run.score(split, source.metric) for run in runs] for split in SPLITS]
        if any(value is not None for values in told for value in values):
            rows.append([name, *(Cell(_spread(values)) for values in told)])
    if not rows:
        return tag("p", NOT_SCORED, class_="note")
    head = ["engine", "best validation", "test"]
    caption = "Mean over rounds; their range where they differ"
    return figure(f"Final {source.metric}", "", table(caption, head, rows, hidden=False))


def tell_score(value: float | None) -> str:
    """A score with four decimals."""
    return UNKNOWN if value is None else f"{value:.4f}"


def _metrics(summary: Summary) -> list[str]:
    """Those of any split, the one that selects the best model first."""
    return list(dict.fromkeys([summary.metric, *(m for s in summary.scores.values() for m in s)]))


def _by_epoch(summary: Summary, metric: str) -> Markup | None:
    selects = metric == summary.metric
    told = {i: _validation(epoch, metric, selects) for i, epoch in enumerate(summary.epochs)}
    known = {i: value for i, value in told.items() if value is not None}
    if not known:
        return None
    curves = [Curve("validation", "k-gather", list(known), list(known.values()), exact=False)]
    trained = {i: each.train for i, each in enumerate(summary.epochs) if each.train is not None}
    if selects and trained:
        values = list(trained.values())
        curves.append(Curve("training nodes", "k-partial", list(trained), values, exact=False))
    best, test = summary.best_epoch, summary.score("test", metric)
    words = ""
    if best is not None:
        words = f"Dashed: epoch {best}, the best by {summary.metric}, whose parameters are kept"
        words += f"; they reach {tell_score(test)} on the test split." if test is not None else "."
    return curves_figure(f"{metric} by epoch", words, curves, "epoch", tell_score, compared=False,
                         mark=best)  # fmt: skip


def _validation(epoch: Epoch, metric: str, selects: bool) -> float | None:
    return epoch.scores.get(metric, epoch.val if selects else None)


def _at_the_end(summary: Summary) -> Markup:
    rows: list[Sequence[Child | Cell]] = []
    for metric in _metrics(summary):
        scores = [summary.score(split, metric) for split in SPLITS]
        simple = summary.baselines.get("test", {}).get(metric)
        rows.append([metric, *(Cell(tell_score(each)) for each in (*scores, simple))])
    head = ["metric", *SPLITS.values(), "one answer for all, test"]
    told = "" if summary.best_epoch is None else f" after epoch {summary.best_epoch}"
    return figure(
        "Scores of the model that was kept",
        f"The best model by validation {summary.metric}{told}, beside what the same answer for "
        "every node, edge or link reaches.",
        table("Scores by metric and split", head, rows),
    )


def _class_table(scores: ByClass) -> Markup:
    rows: list[Sequence[Child | Cell]] = [
        [name, Cell(f"{support:,}"), *(Cell(tell_score(each)) for each in (precision, recall, f1)),
         _meter(f1)]
        for name, support, precision, recall, f1 in zip(
            scores.names, scores.support, scores.precision, scores.recall, scores.f1, strict=True
        )
    ]  # fmt: skip
    head = ["class", "support", "precision", "recall", "F1", ""]
    known = [each for each in scores.f1 if each is not None]
    told = f"; mean F1 {fmean(known):.4f}" if known else ""
    return figure(
        "Test scores by class",
        f"{units.things(len(rows), 'class', 'classes')}{told}. Support: how many roots are of the "
        "class. Precision: of what was taken for it, the share that is of it. Recall: the share of "
        f"its roots that were recognised. {UNKNOWN}: there are none.",
        tag("div", table("Scores by class", head, rows), class_="long"),
    )


def _meter(value: float | None) -> Markup:
    share = 0.0 if value is None else min(max(value, 0.0), 1.0)
    bar = tag("span", style=f"width:{percent(share)}")
    return tag("span", bar, class_="meter", aria_hidden="true")


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    low, high = min(known), max(known)
    spread = f" ({low:.4f} to {high:.4f})" if high > low else ""
    return f"{fmean(known):.4f}{spread}"
