"""Scores of a model: by epoch, at the end, and by class."""

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
    """Make the charts of a single run's scores: by epoch, at the end, and by class.

    The final scores stand beside those of one and the same answer for all roots.
    """
    summary = source.summary
    if summary is None:
        return []
    if not any(summary.scores.values()):
        return [tag("p", NOT_SCORED, class_="note")]
    by_epoch = [_epoch_chart(summary, metric) for metric in _metrics(summary)]
    charts = [chart for chart in by_epoch if chart is not None]
    contents: list[Child] = [
        _trials_table(summary),
        tag("div", [*charts, _final_scores_chart(summary)], class_="pair"),
    ]
    by_class = summary.by_class.get("test")
    return [*contents, _class_table(by_class) if by_class is not None else None]


def final_scores(source: Source) -> Child:
    """Make a table of the best models' scores of an A/B, as means over rounds."""
    rows = []
    for name in source.names:
        runs = source.runs_of(name)
        scores_by_split = [[run.score(split, source.metric) for run in runs] for split in SPLITS]
        if any(value is not None for values in scores_by_split for value in values):
            rows.append([name, *(Cell(_mean_and_range(values)) for values in scores_by_split)])
    if not rows:
        return tag("p", NOT_SCORED, class_="note")
    head = ["engine", "best validation", "test"]
    caption = "Mean over rounds; their range where they differ"
    return figure(f"Final {source.metric}", "", table(caption, head, rows, hidden=False))


def tell_score(value: float | None) -> str:
    """Write a score with four decimals."""
    return UNKNOWN if value is None else f"{value:.4f}"


def _metrics(summary: Summary) -> list[str]:
    """Return the metrics of all splits. The first one selects the best model."""
    return list(dict.fromkeys([summary.metric, *(m for s in summary.scores.values() for m in s)]))


def _epoch_chart(summary: Summary, metric: str) -> Markup | None:
    selects = metric == summary.metric
    scores = {i: _validation(epoch, metric, selects) for i, epoch in enumerate(summary.epochs)}
    known_scores = {i: value for i, value in scores.items() if value is not None}
    if not known_scores:
        return None
    curves = [
        Curve(
            "validation", "k-gather", list(known_scores), list(known_scores.values()), exact=False
        )
    ]
    trained = {
        i: scored_epoch.train
        for i, scored_epoch in enumerate(summary.epochs)
        if scored_epoch.train is not None
    }
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


def _final_scores_chart(summary: Summary) -> Markup:
    rows: list[Sequence[Child | Cell]] = []
    for metric in _metrics(summary):
        scores = [summary.score(split, metric) for split in SPLITS]
        simple = summary.baselines.get("test", {}).get(metric)
        rows.append([metric, *(Cell(tell_score(score)) for score in (*scores, simple))])
    head = ["metric", *SPLITS.values(), "one answer for all, test"]
    after_epoch = "" if summary.best_epoch is None else f" after epoch {summary.best_epoch}"
    return figure(
        "Scores of the model that was kept",
        f"The best model by validation {summary.metric}{after_epoch}, beside what the same answer "
        "for every node, edge or link reaches.",
        table("Scores by metric and split", head, rows),
    )


def _trials_table(summary: Summary) -> Child:
    """Make a table of a sweep's trials, the best first; None for a run of one model."""
    if not summary.trials:
        return None
    trials, metric = summary.ranked_trials, summary.metric
    keys = list(dict.fromkeys(key for trial in trials for key in trial.overrides))
    rows: list[Sequence[Child | Cell]] = [
        [
            f"trial {trial.trial}",
            *(Cell(str(trial.overrides.get(key, ""))) for key in keys),
            *(Cell(tell_score(trial.score(split, metric))) for split in SPLITS),
            Cell(UNKNOWN if trial.best_epoch is None else str(trial.best_epoch)),
        ]
        for trial in trials
    ]
    head = ["trial", *keys, *SPLITS.values(), "best epoch"]
    return figure(
        "Trials, ranked",
        f"By validation {metric}. The rest of the page is about the first one. Epochs and bytes "
        "are those of all trials together. `hopper report DIR/trial-0` reports on one trial.",
        table(f"Trials by {metric}", head, rows),
    )


def _class_table(scores: ByClass) -> Markup:
    rows: list[Sequence[Child | Cell]] = [
        [name, Cell(f"{support:,}"),
         *(Cell(tell_score(score)) for score in (precision, recall, f1)), _meter(f1)]
        for name, support, precision, recall, f1 in zip(
            scores.names, scores.support, scores.precision, scores.recall, scores.f1, strict=True
        )
    ]  # fmt: skip
    head = ["class", "support", "precision", "recall", "F1", ""]
    known_values = [value for value in scores.f1 if value is not None]
    mean_text = f"; mean F1 {fmean(known_values):.4f}" if known_values else ""
    return figure(
        "Test scores by class",
        f"{units.things(len(rows), 'class', 'classes')}{mean_text}. Support: how many roots are of "
        "the class. Precision: of what was taken for it, the share that is of it. Recall: the "
        f"share of its roots that were recognised. {UNKNOWN}: there are none.",
        tag("div", table("Scores by class", head, rows), class_="long"),
    )


def _meter(value: float | None) -> Markup:
    share = 0.0 if value is None else min(max(value, 0.0), 1.0)
    bar = tag("span", style=f"width:{percent(share)}")
    return tag("span", bar, class_="meter", aria_hidden="true")


def _mean_and_range(values: Sequence[float | None]) -> str:
    known_values = [value for value in values if value is not None]
    if not known_values:
        return UNKNOWN
    low, high = min(known_values), max(known_values)
    range_text = f" ({low:.4f} to {high:.4f})" if high > low else ""
    return f"{fmean(known_values):.4f}{range_text}"
