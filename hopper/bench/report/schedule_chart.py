"""The time steps as they ran: what each rank did when, and how models moved between ranks.

The marks have two colourings, by model and by stage, and style.css chooses one. Time is a share of
the width. So a zoomed chart is wider, and one on a common time axis is narrower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hopper.bench.report import units
from hopper.bench.report.bars import legend
from hopper.bench.report.colours import series_class
from hopper.bench.report.markup import Markup, breakable, join_markup, percent, tag
from hopper.bench.report.spans import Passage, Span, Timeline
from hopper.bench.report.tables import Cell, table
from hopper.palette import SERIES
from hopper.run_log import STAGES

_ROW: Final = 38
_BAR: Final = 26
_THIN: Final = {"wait": 8, "migrate": 14, "sync": 14}
"""Heights of spans without work. They are lower than spans of work."""
_AHEAD: Final = 4
"""Height of spans of other threads. Plans are drawn above a rank's row, rows below it."""
_AXIS: Final = 24
_SHORTEST: Final = 2e-4
"""Shorter spans are not drawn. In shares of the iteration."""
_LABELLED: Final = 0.028


def charts(timelines: Mapping[str, Sequence[Timeline]]) -> Markup:
    """Make the charts of all recorded iterations, with buttons to choose between them.

    Parameters
    ----------
    timelines: recorded iterations by name of the run.
    """
    several = max((len(recorded) for recorded in timelines.values()), default=0)
    hop = any(
        span.model is not None
        for recorded in timelines.values()
        for t in recorded
        for span in t.spans
    )
    panels = [
        tag(
            "div",
            [
                _chart(name, recorded[index], _longest(timelines, index))
                for name, recorded in timelines.items()
                if index < len(recorded)
            ],
            class_="iteration",
            data_iteration=index,
        )
        for index in range(several)
    ]
    first_timelines = next(iter(timelines.values()))
    names = [f"Iteration {timeline.iteration}" for timeline in max(timelines.values(), key=len)]
    return tag(
        "div",
        _controls(names, hop),
        tag("p", f"Epoch {first_timelines[0].epoch}, the last one recorded.", class_="unseen"),
        panels,
        class_="schedule" + (" by-model" if hop else " by-stage"),
        id="schedule-charts",
    )


def key(timelines: Mapping[str, Sequence[Timeline]]) -> Markup:
    """Make the legends of both colourings."""
    models = sorted(
        {
            s.model
            for recorded in timelines.values()
            for t in recorded
            for s in t.spans
            if s.model is not None
        }
    )
    by_stage = legend({stage: f"k-{stage}" for stage in STAGES})
    if not models:
        return tag("div", by_stage, class_="for-stage")
    by_model = {f"model {model}": series_class(model) for model in models[: len(SERIES)]}
    others = {"several models, or none": "k-plain", "moving": "k-moving", "waiting": "k-wait"}
    return join_markup(
        tag("div", legend(by_model | others), class_="for-model"),
        tag("div", by_stage, class_="for-stage"),
    )


def _longest(timelines: Mapping[str, Sequence[Timeline]], index: int) -> float:
    return max(recorded[index].seconds for recorded in timelines.values() if index < len(recorded))


def _controls(names: Sequence[str], hop: bool) -> Markup:
    """Make the buttons. script.js shows them. Without it all charts are on the page at once."""
    choices = [
        tag("button", name, type="button", data_choose=index, aria_pressed=str(index == 0).lower())
        for index, name in enumerate(names)
    ]
    colours = [
        tag("button", f"by {kind}", type="button", data_colour=kind,
            aria_pressed=str(kind == "model").lower())
        for kind in ("model", "stage")
    ]  # fmt: skip
    zooms = [
        tag("button", sign, type="button", data_zoom=factor, aria_label=label)
        for sign, factor, label in (("−", 0.5, "Zoom out"), ("+", 2, "Zoom in"))
    ]
    common = tag("button", "same time axis", type="button", data_common=True, aria_pressed="false")

    def group(label: str, children: Sequence[Markup]) -> Markup:
        return tag("div", children, class_="buttons", role="group", aria_label=label)

    return tag(
        "div",
        group("Iteration", choices) if len(names) > 1 else None,
        group("Colours", colours) if hop else None,
        group("Time axis", [common, *zooms]),
        class_="controls",
        hidden=True,
    )


def _chart(name: str, timeline: Timeline, longest: float) -> Markup:
    height = timeline.ranks * _ROW + _AXIS
    waits = _waiting(timeline)
    labels = [
        tag("div", tag("b", f"rank {rank}"), tag("span", f"waits {waits[rank]:.0%}"))
        for rank in range(timeline.ranks)
    ]
    marks = join_markup(
        _grid(timeline, height),
        [_passage(passage, timeline) for passage in timeline.passages],
        [_span(span, timeline) for span in _visible_spans(timeline)],
        [_arrival(passage, timeline) for passage in timeline.passages],
    )
    words = (
        f"{name}, iteration {timeline.iteration}: {units.seconds(timeline.seconds)}. "
        + "; ".join(f"rank {rank} waits {share:.0%}" for rank, share in waits.items())
    )
    svg = tag("svg", marks, role="img", aria_label=words, width="100%", height=height)
    inner = tag("div", svg, class_="gantt-inner", style=f"--share:{timeline.seconds / longest:.4f}")
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("h3", breakable(name)),
            tag("p", f"epoch {timeline.epoch}, iteration {timeline.iteration}: ",
                tag("b", units.seconds(timeline.seconds)), _note(timeline)),
        ),
        tag("div", tag("div", labels, class_="gantt-ranks"),
            tag("div", inner, class_="gantt-scroll", tabindex=0, role="region",
                aria_label=f"Time steps of {name}"),
            class_="gantt"),
        tag("details", tag("summary", "Numbers"), _numbers(name, timeline), class_="numbers"),
    )  # fmt: skip


def _note(timeline: Timeline) -> str:
    if timeline.alignment == "barriers":
        return "; ranks' clocks aligned by the waits that end iterations"
    if timeline.alignment == "none":
        return "; ranks' clocks could not be aligned, so compare only within a rank"
    return ""


def _visible_spans(timeline: Timeline) -> list[Span]:
    least = _SHORTEST * timeline.seconds
    return [span for span in timeline.spans if span.seconds >= least]


def _span(span: Span, timeline: Timeline) -> Markup:
    height: float = _THIN.get(span.stage, _BAR)
    top = span.rank * _ROW + (_ROW - height) / 2
    if span.thread:
        edge = (_ROW - _BAR) / 2 - _AHEAD
        height = _AHEAD
        top = span.rank * _ROW + (edge if span.thread == "plan" else _ROW - edge - _AHEAD)
    start, width = span.start / timeline.seconds, span.seconds / timeline.seconds
    # If no models migrate, every rank trains its own model.
    owner = span.model if timeline.passages or span.model is not None else span.rank
    colour = "m-none" if owner is None else series_class(owner)
    rect = tag(
        "rect", x=percent(start), y=top, width=percent(width),
        height=height, class_=f"span s-{span.stage} {colour}", data_tip=_tip(span),
    )  # fmt: skip
    if span.thread or span.stage != "compute" or span.model is None or width < _LABELLED:
        return rect
    middle = span.rank * _ROW + _ROW / 2
    text = tag(
        "text", f"m{span.model}", x=percent(start + width / 2), y=middle, class_=f"in {colour}"
    )
    return join_markup(rect, text)


def _tip(span: Span) -> str:
    ahead = ", ahead" if span.thread else ""
    lines = [f"rank {span.rank}: {span.stage}{ahead}, {units.seconds(span.seconds)}"]
    if span.model is not None:
        lines.append(f"model {span.model}")
    if span.step is not None:
        lines.append(f"time step {span.step}")
    lines += [f"{name}: {value}" for name, value in span.details.items()]
    return "\n".join(lines)


def _passage(passage: Passage, timeline: Timeline) -> Markup:
    """Draw a line from the middle of the sender's row to the middle of the receiver's."""
    x1, x2 = (percent(t / timeline.seconds) for t in (passage.leaves, passage.arrives))
    y1, y2 = (rank * _ROW + _ROW / 2 for rank in (passage.source, passage.target))
    ends = f"rank {passage.source} to {passage.target}"
    tip = f"model {passage.model}: {ends}\nbefore time step {passage.step}"
    colour = series_class(passage.model)
    return tag(
        "g",
        tag("line", x1=x1, x2=x2, y1=y1, y2=y2, class_="halo"),
        tag("line", x1=x1, x2=x2, y1=y1, y2=y2, class_="path"),
        class_=f"passage {colour}",
        data_tip=tip,
    )


def _arrival(passage: Passage, timeline: Timeline) -> Markup:
    """Draw a dot where a model arrives."""
    x, y = percent(passage.arrives / timeline.seconds), passage.target * _ROW + _ROW / 2
    return tag("circle", cx=x, cy=y, r=3.5, class_=f"arrival {series_class(passage.model)}")


def _grid(timeline: Timeline, height: int) -> list[Markup]:
    bottom = height - _AXIS
    marks = [
        tag("line", x1=0, x2="100%", y1=rank * _ROW, y2=rank * _ROW, class_="grid")
        for rank in range(timeline.ranks + 1)
    ]
    for tick in units.round_steps(0.0, timeline.seconds, 7):
        x = percent(tick / timeline.seconds)
        marks.append(tag("line", x1=x, x2=x, y1=0, y2=bottom + 5, class_="grid"))
        late = tick > 0.96 * timeline.seconds
        marks.append(
            tag("text", units.tick(tick, timeline.seconds), x=x, y=height - 6,
                class_="tick first" if tick == 0 else "tick last" if late else "tick")
        )  # fmt: skip
    return marks


def _waiting(timeline: Timeline) -> dict[int, float]:
    """Return the share of the iteration that each rank waits for others."""
    waited = dict.fromkeys(range(timeline.ranks), 0.0)
    for span in timeline.spans:
        if span.stage == "wait" and not span.thread:
            waited[span.rank] += span.seconds
    return {rank: seconds / timeline.seconds for rank, seconds in waited.items()}


def _numbers(name: str, timeline: Timeline) -> Markup:
    sums: dict[tuple[int, str], float] = {
        (rank, stage): 0.0 for rank in range(timeline.ranks) for stage in STAGES
    }
    for span in timeline.spans:
        sums[span.rank, span.stage] += span.seconds
    rows = [
        [f"rank {rank}", *(Cell(units.seconds(sums[rank, stage])) for stage in STAGES)]
        for rank in range(timeline.ranks)
    ]
    return table(f"{name}: a rank's time by stage", ["", *STAGES], rows)
