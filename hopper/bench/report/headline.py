"""The top of the page: the main finding in a sentence, and a card for each engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from hopper.bench.parity import LIMITS
from hopper.bench.report import bars, units
from hopper.bench.report.colours import colour_classes
from hopper.bench.report.findings import Findings
from hopper.bench.report.markup import Child, Markup, breakable, tag
from hopper.bench.report.scores import tell_score
from hopper.bench.report.source import Source
from hopper.bench.statistics import measured_epochs
from hopper.bench.verdict import (
    most_telling,
    tell_bounds,
    tell_bytes,
    tell_ratio,
    tell_speed,
    why_not,
)
from hopper.paired_ratio import CONFIDENCE, Ratio

_CARDS_A_ROW: Final = 5


def headline(source: Source, findings: Findings) -> str:
    """Write the main finding as a heading."""
    data = str(source.results.dataset.get("name", "")) or source.folder.resolve().name
    if source.kind == "run":
        return _run_headline(source, findings, data)
    if findings.problems:
        return "No speed-up can be told"
    name = _headline_engine(findings)
    if name is None:
        return f"{units.join_words(source.names)} on {data}"
    baseline = findings.baselines[0]
    ratio = findings.ratios[baseline][name]
    if not ratio.is_shown:
        return f"No difference shown between {name} and {baseline}"
    return tell_speed(name, baseline, ratio)


def _run_headline(source: Source, findings: Findings, data: str) -> str:
    """Write the scores of a run, or its epoch time if it has no scores."""
    run, metric = source.results.runs[0], source.metric
    score_texts = [
        f"{tell_score(score)} on {words}"
        for split, words in (("test", "the test split"), ("val", "validation"))
        if (score := run.score(split, metric)) is not None
    ]
    if score_texts:
        return f"{data}: {metric} {', '.join(score_texts)}"
    return f"{run.name} on {data}: {units.seconds(findings.figures[run.name].seconds)} an epoch"


def _headline_engine(findings: Findings) -> str | None:
    """Choose the exact engine that the headline compares with the first baseline.

    None if there is no such engine.
    """
    ratios = findings.ratios.get(findings.baselines[0], {}) if findings.baselines else {}
    exact = {name: ratio for name, ratio in ratios.items() if name not in findings.approximate}
    return most_telling(exact) if exact else None


def hero(source: Source, findings: Findings) -> Markup:
    """Make the page's header: the heading, the setting, a refusal if there is one, the cards."""
    title = "A/B comparison" if source.kind == "ab" else "training run"
    data = str(source.results.dataset.get("name", ""))
    return tag(
        "header",
        tag("p", " · ".join(text for text in (f"Hopper {title}", data, _model(source)) if text),
            class_="overline"),
        tag("h1", breakable(headline(source, findings))),
        tag("p", _lead(source, findings), class_="lead"),
        _refusal(findings),
        _cards(source, findings),
    )  # fmt: skip


def _model(source: Source) -> str:
    model = source.results.runs[0].model
    words = [str(model.get("name", ""))]
    words += [f"{model[key]} {word}" for key, word in (("layers", "layers"),) if key in model]
    words += [f"hidden {model['hidden']}"] if "hidden" in model else []
    return ", ".join(word for word in words if word)


def _lead(source: Source, findings: Findings) -> str:
    run = source.results.runs[0]
    epochs = units.things(len(measured_epochs(run.model_dump())), "measured epoch")
    if source.kind == "run":
        trained = units.things(len(run.epochs), "epoch")
        return f"{run.name}; times and bytes are of {epochs} of {trained}."
    rounds = len({run.round for run in source.results.runs})
    text = (
        f"{units.things(rounds, 'interleaved round')} of {epochs} on identical seeds, roots and "
        "draws."
    )
    if findings.problems:
        return text
    name = _headline_engine(findings)
    if name is not None:
        baseline = findings.baselines[0]
        if not findings.ratios[baseline][name].is_shown:
            text += f" {_sentence(tell_speed(name, baseline, findings.ratios[baseline][name]))}"
        bytes_text = tell_bytes(name, baseline, findings.byte_ratios[baseline][name])
        text += f" {_sentence(bytes_text)}"
    checked = {
        n: v
        for n, v in findings.gradients.items()
        if n not in findings.approximate and v is not None
    }
    if checked:
        text += (
            f" All exact engines computed the same gradient: largest relative difference "
            f"{max(checked.values()):.1e}, limit {findings.gradient_limit:g}."
        )
    rechecked = [findings.in_float64[name] for name in checked if name in findings.in_float64]
    if rechecked:
        text += (
            f" What is above the limit is rounding: run again in float64, {max(rechecked):.1e}, "
            f"limit {LIMITS['gradients']['float64']:g}."
        )
    if rounds < 2:
        text += " One round only: no ratio has an interval."
    return text


def _sentence(text: str) -> str:
    """Make a sentence of a text. If it begins with a name, the name stays as it is."""
    return f"{text[0].upper() if text.startswith(('no ', 'the ')) else text[0]}{text[1:]}."


def _refusal(findings: Findings) -> Child:
    if not findings.problems:
        return None
    return tag(
        "div",
        tag("h2", "Refused: the engines did not compute the same"),
        tag("p", "A speed-up compares engines that do the same work. These do not, so their times "
            "are shown but not set against each other."),
        tag("ul", [tag("li", problem) for problem in findings.problems]),
        class_="refusal",
        role="alert",
    )  # fmt: skip


def _cards(source: Source, findings: Findings) -> Markup:
    if source.kind == "run":
        cards = _run_cards(source, findings)
    else:
        colours = colour_classes(source)
        cards = [_card(findings, colours[name], name) for name in source.names]
    rows = math.ceil(len(cards) / _CARDS_A_ROW)
    columns = math.ceil(len(cards) / rows)
    return tag("div", cards, class_="cards", style=f"--columns:{columns}")


def _run_cards(source: Source, findings: Findings) -> list[Markup]:
    """Make a card for each figure of a single run."""
    run = source.results.runs[0]
    figures = findings.figures[run.name]
    values: dict[str, tuple[str, str]] = {}
    best = None if source.summary is None else source.summary.best_epoch
    epoch_text = "" if best is None else f"epoch {best} (of 0 to {len(run.epochs) - 1})"
    for split, words in (("test", "Test"), ("val", "Best validation")):
        score = run.score(split, source.metric)
        if score is not None:
            values[f"{words} {source.metric}"] = (tell_score(score), epoch_text)
    values["Epoch"] = (units.seconds(figures.seconds), "mean of the measured epochs")
    feature_text = f"{units.size(figures.bytes['feature'])} of it features"
    values["Traffic"] = (units.size(sum(figures.bytes.values())), feature_text)
    if run.peak_rss_mib:
        values["Peak memory"] = (units.memory(max(run.peak_rss_mib)), "of the largest rank")
    return [
        tag("div", tag("h2", name), tag("p", value, class_="big"), tag("p", words),
            class_="card figure")
        for name, (value, words) in values.items()
    ]  # fmt: skip


def _card(findings: Findings, colour: str, name: str) -> Markup:
    figures = findings.figures[name]
    lines: list[Child] = []
    ratios = [(b, findings.ratio(name, b)) for b in findings.baselines if b != name]
    # The first baseline shows its time, also if there is a second baseline.
    first = findings.ratio(name, findings.baselines[0]) if findings.baselines else None
    if first is not None and first.is_shown:
        big = tag("p", f"{first.mean:.2f}", tag("span", "×"), class_="big")
        lines.append(tag("p", f"{units.seconds(figures.seconds)} an epoch"))
    else:
        big = tag("p", units.seconds(figures.seconds), class_="big")
        lines.append(tag("p", "an epoch"))
    intervals = [_interval(b, ratio, ratio is first) for b, ratio in ratios if ratio is not None]
    is_faster_shown = first is not None and first.is_shown
    lines = [*intervals, *lines] if is_faster_shown else [*lines, *intervals]
    lines += [
        tag("p", _describe_bytes(findings, name)),
        tag("p", _describe_gradient(findings, name)),
    ]
    badges = [tag("span", word, class_="badge") for word in _badges(findings, name)]
    swatch = tag("span", class_=f"swatch {colour}", aria_hidden="true")
    heading = tag("h2", swatch, tag("span", breakable(name)), badges)
    return tag("div", heading, big, lines, class_="card")


def _badges(findings: Findings, name: str) -> Sequence[str]:
    badges = ["baseline"] if findings.baselines and name == findings.baselines[0] else []
    return [*badges, "approximate"] if name in findings.approximate else badges


def _interval(baseline: str, ratio: Ratio, is_first: bool) -> Markup:
    """Describe a ratio. The number of the first one already stands above, in large print."""
    if not ratio.is_shown:
        text, interval = f"no difference shown to {baseline}", why_not(ratio)
    else:
        number = "" if is_first else f"{ratio.mean:.2f}× "
        text = f"{number}as fast as {baseline}"
        interval = f"{CONFIDENCE:.0%} interval {tell_bounds(ratio)}"
    return tag("p", text, tag("br"), tag("small", interval))


def _describe_bytes(findings: Findings, name: str) -> str:
    """Describe all bytes, and their ratio to the first baseline's if a difference is shown."""
    bytes_by_cause = findings.figures[name].bytes
    sent_text = f"{units.size(sum(bytes_by_cause.values()))} sent"
    baseline = findings.baselines[0] if findings.baselines else None
    ratio = None if baseline is None else findings.byte_ratios.get(baseline, {}).get(name)
    if ratio is None or baseline is None:
        return f"{sent_text}, {units.size(bytes_by_cause['feature'])} of it features"
    if not ratio.is_shown:
        return f"{sent_text}, no difference shown ({why_not(ratio)})"
    if ratio.mean < 1:
        return f"{sent_text}, {tell_ratio(ratio.inverse)} times as many bytes"
    return f"{sent_text}, {tell_ratio(ratio)} times fewer bytes"


def _describe_gradient(findings: Findings, name: str) -> str | None:
    """Describe the result of the parity check."""
    if name in findings.wrong_gradients:
        return "not the reference's gradient"
    if name in findings.rounding:
        return f"gradient rounded on purpose, {units.difference(findings.gradients[name])} off"
    if findings.gradients[name] is None:
        return "gradient not checked"
    return f"same gradient, within {units.difference(findings.gradients[name])}"


def ratios_section(source: Source, findings: Findings) -> Child:
    """Make a chart of speed-ups for each baseline. None if there is nothing to show."""
    colours = colour_classes(source)
    charts = [
        bars.ratios(
            f"Speed-up over {baseline}",
            f"Epoch time of {baseline} divided by the engine's, geometric mean over paired rounds, "
            f"with the {CONFIDENCE:.0%} interval of Student's t.",
            {name: (colours[name], ratio) for name, ratio in findings.ratios[baseline].items()},
        )
        for baseline in findings.baselines
        if findings.ratios.get(baseline)
    ]
    notes = [tag("p", note, class_="note") for note in findings.unpaired]
    return [*charts, *notes] if charts or notes else None
