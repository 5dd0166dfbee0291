"""The top of the page: what was found, in a sentence, and a card per engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from hopper.bench.parity import GRADIENT_LIMITS
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


def headline(source: Source, found: Findings) -> str:
    """What was found, as a heading."""
    data = str(source.results.dataset.get("name", "")) or source.folder.resolve().name
    if source.kind == "run":
        return _run_headline(source, found, data)
    if found.problems:
        return "No speed-up can be told"
    name = _told_engine(found)
    if name is None:
        return f"{units.listed(source.names)} on {data}"
    baseline = found.baselines[0]
    ratio = found.ratios[baseline][name]
    if not ratio.is_shown:
        return f"No difference shown between {name} and {baseline}"
    return tell_speed(name, baseline, ratio)


def _run_headline(source: Source, found: Findings, data: str) -> str:
    """A run's scores; its epoch time where it was not scored."""
    run, metric = source.results.runs[0], source.metric
    told = [
        f"{tell_score(score)} on {words}"
        for split, words in (("test", "the test split"), ("val", "validation"))
        if (score := run.score(split, metric)) is not None
    ]
    if told:
        return f"{data}: {metric} {', '.join(told)}"
    return f"{run.name} on {data}: {units.seconds(found.figures[run.name].seconds)} an epoch"


def _told_engine(found: Findings) -> str | None:
    """Which exact engine the headline sets against the first baseline; None where none can be."""
    ratios = found.ratios.get(found.baselines[0], {}) if found.baselines else {}
    exact = {name: ratio for name, ratio in ratios.items() if name not in found.approximate}
    return most_telling(exact) if exact else None


def hero(source: Source, found: Findings) -> Markup:
    """Heading, what was compared, refusal if there is one, cards."""
    kind = "A/B comparison" if source.kind == "ab" else "training run"
    data = str(source.results.dataset.get("name", ""))
    return tag(
        "header",
        tag("p", " · ".join(each for each in (f"Hopper {kind}", data, _model(source)) if each),
            class_="overline"),
        tag("h1", breakable(headline(source, found))),
        tag("p", _lead(source, found), class_="lead"),
        _refusal(found),
        _cards(source, found),
    )  # fmt: skip


def _model(source: Source) -> str:
    model = source.results.runs[0].model
    told = [str(model.get("name", ""))]
    told += [f"{model[key]} {word}" for key, word in (("layers", "layers"),) if key in model]
    told += [f"hidden {model['hidden']}"] if "hidden" in model else []
    return ", ".join(each for each in told if each)


def _lead(source: Source, found: Findings) -> str:
    run = source.results.runs[0]
    epochs = units.things(len(measured_epochs(run.model_dump())), "measured epoch")
    if source.kind == "run":
        trained = units.things(len(run.epochs), "epoch")
        return f"{run.name}; times and bytes are of {epochs} of {trained}."
    rounds = len({each.round for each in source.results.runs})
    text = (
        f"{units.things(rounds, 'interleaved round')} of {epochs} on identical seeds, roots and "
        "draws."
    )
    if found.problems:
        return text
    name = _told_engine(found)
    if name is not None:
        baseline = found.baselines[0]
        if not found.ratios[baseline][name].is_shown:
            text += f" {_sentence(tell_speed(name, baseline, found.ratios[baseline][name]))}"
        told = tell_bytes(name, baseline, found.byte_ratios[baseline][name])
        text += f" {_sentence(told)}"
    checked = {
        n: v for n, v in found.gradients.items() if n not in found.approximate and v is not None
    }
    if checked:
        text += (
            f" All exact engines computed the same gradient: largest relative difference "
            f"{max(checked.values()):.1e}, limit {found.gradient_limit:g}."
        )
    again = [found.in_float64[name].difference for name in checked if name in found.in_float64]
    if again:
        text += (
            f" What is above the limit is rounding: run again in float64, {max(again):.1e}, limit "
            f"{GRADIENT_LIMITS['float64']:g}."
        )
    if rounds < 2:
        text += " One round only: no ratio has an interval."
    return text


def _sentence(text: str) -> str:
    """With a full stop; a name in front stays as it is written."""
    return f"{text[0].upper() if text.startswith(('no ', 'the ')) else text[0]}{text[1:]}."


def _refusal(found: Findings) -> Child:
    if not found.problems:
        return None
    return tag(
        "div",
        tag("h2", "Refused: the engines did not compute the same"),
        tag("p", "A speed-up compares engines that do the same work. These do not, so their times "
            "are shown but not set against each other."),
        tag("ul", [tag("li", problem) for problem in found.problems]),
        class_="refusal",
        role="alert",
    )  # fmt: skip


def _cards(source: Source, found: Findings) -> Markup:
    if source.kind == "run":
        cards = _run_cards(source, found)
    else:
        colours = colour_classes(source)
        cards = [_card(found, colours[name], name) for name in source.names]
    rows = math.ceil(len(cards) / _CARDS_A_ROW)
    columns = math.ceil(len(cards) / rows)
    return tag("div", cards, class_="cards", style=f"--columns:{columns}")


def _run_cards(source: Source, found: Findings) -> list[Markup]:
    """A single run's figures, a card each."""
    run = source.results.runs[0]
    own = found.figures[run.name]
    told: dict[str, tuple[str, str]] = {}
    best = None if source.summary is None else source.summary.best_epoch
    after = "" if best is None else f"epoch {best} (of 0 to {len(run.epochs) - 1})"
    for split, words in (("test", "Test"), ("val", "Best validation")):
        score = run.score(split, source.metric)
        if score is not None:
            told[f"{words} {source.metric}"] = (tell_score(score), after)
    told["Epoch"] = (units.seconds(own.seconds), "mean of the measured epochs")
    sent = f"{units.size(own.bytes['feature'])} of it features"
    told["Traffic"] = (units.size(sum(own.bytes.values())), sent)
    if run.peak_rss_mib:
        told["Peak memory"] = (units.memory(max(run.peak_rss_mib)), "of the largest rank")
    return [
        tag("div", tag("h2", name), tag("p", value, class_="big"), tag("p", words),
            class_="card figure")
        for name, (value, words) in told.items()
    ]  # fmt: skip


def _card(found: Findings, colour: str, name: str) -> Markup:
    own = found.figures[name]
    told: list[Child] = []
    ratios = [(b, found.ratio(name, b)) for b in found.baselines if b != name]
    # Of the baseline itself the time is what matters, also where there is a second baseline.
    first = found.ratio(name, found.baselines[0]) if found.baselines else None
    if first is not None and first.is_shown:
        big = tag("p", f"{first.mean:.2f}", tag("span", "×"), class_="big")
        told.append(tag("p", f"{units.seconds(own.seconds)} an epoch"))
    else:
        big = tag("p", units.seconds(own.seconds), class_="big")
        told.append(tag("p", "an epoch"))
    intervals = [_interval(b, ratio, ratio is first) for b, ratio in ratios if ratio is not None]
    shown = first is not None and first.is_shown
    told = [*intervals, *told] if shown else [*told, *intervals]
    told += [tag("p", _sent(found, name)), tag("p", _same_gradient(found, name))]
    badges = [tag("span", word, class_="badge") for word in _badges(found, name)]
    swatch = tag("span", class_=f"swatch {colour}", aria_hidden="true")
    heading = tag("h2", swatch, tag("span", breakable(name)), badges)
    return tag("div", heading, big, told, class_="card")


def _badges(found: Findings, name: str) -> Sequence[str]:
    badges = ["baseline"] if found.baselines and name == found.baselines[0] else []
    return [*badges, "approximate"] if name in found.approximate else badges


def _interval(baseline: str, ratio: Ratio, is_first: bool) -> Markup:
    """Words on a ratio; a first one that is shown stands above them already."""
    if not ratio.is_shown:
        text, interval = f"no difference shown to {baseline}", why_not(ratio)
    else:
        number = "" if is_first else f"{ratio.mean:.2f}× "
        text = f"{number}as fast as {baseline}"
        interval = f"{CONFIDENCE:.0%} interval {tell_bounds(ratio)}"
    return tag("p", text, tag("br"), tag("small", interval))


def _sent(found: Findings, name: str) -> str:
    """All bytes, and against the first baseline's where the rounds show a difference."""
    own = found.figures[name].bytes
    sent = f"{units.size(sum(own.values()))} sent"
    baseline = found.baselines[0] if found.baselines else None
    ratio = None if baseline is None else found.byte_ratios.get(baseline, {}).get(name)
    if ratio is None or baseline is None:
        return f"{sent}, {units.size(own['feature'])} of it features"
    if not ratio.is_shown:
        return f"{sent}, no difference shown ({why_not(ratio)})"
    if ratio.mean < 1:
        return f"{sent}, {tell_ratio(ratio.inverse)} times as many bytes"
    return f"{sent}, {tell_ratio(ratio)} times fewer bytes"


def _same_gradient(found: Findings, name: str) -> str | None:
    """The result of the parity check."""
    if name in found.wrong_gradients:
        return "not the reference's gradient"
    if name in found.rounding:
        return f"gradient rounded on purpose, {units.difference(found.gradients[name])} off"
    if found.gradients[name] is None:
        return "gradient not checked"
    return f"same gradient, within {units.difference(found.gradients[name])}"


def ratios_section(source: Source, found: Findings) -> Child:
    """Speed-ups on an axis, a chart for each baseline."""
    colours = colour_classes(source)
    charts = [
        bars.ratios(
            f"Speed-up over {baseline}",
            f"Epoch time of {baseline} divided by the engine's, geometric mean over paired rounds, "
            f"with the {CONFIDENCE:.0%} interval of Student's t.",
            {name: (colours[name], ratio) for name, ratio in found.ratios[baseline].items()},
        )
        for baseline in found.baselines
        if found.ratios.get(baseline)
    ]
    notes = [tag("p", each, class_="note") for each in found.unpaired]
    return [*charts, *notes] if charts or notes else None
