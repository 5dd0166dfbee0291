"""The top of the page: what was found, in a sentence, and a card per engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from hopper.bench.parity import GRADIENT_LIMITS
from hopper.bench.report import bars, units
from hopper.bench.report.findings import Findings
from hopper.bench.report.markup import Child, Markup, breakable, tag
from hopper.bench.report.source import Source
from hopper.bench.statistics import CONFIDENCE, Ratio, measured_epochs

_CARDS_A_ROW: Final = 5


def headline(source: Source, found: Findings) -> str:
    """What was found, as a heading."""
    data = str(source.results.dataset.get("name", "")) or source.folder.resolve().name
    if source.kind == "run":
        name = source.names[0]
        return f"{name} on {data}: {units.seconds(found.figures[name].seconds)} an epoch"
    if found.problems:
        return "No speed-up can be told"
    ratios = found.ratios.get(found.baselines[0], {}) if found.baselines else {}
    told = {name: ratio for name, ratio in ratios.items() if name not in found.approximate}
    if not told:
        return f"{units.listed(source.names)} on {data}"
    nobody = "No exact engine" if found.approximate else "No engine"
    name, best = max(told.items(), key=lambda each: each[1].mean)
    baseline = found.baselines[0]
    if best.low is not None and best.high is not None and best.low <= 1:
        if best.high < 1:
            return f"{nobody} is faster than {baseline}; {name} comes closest"
        return f"{nobody} is clearly faster than {baseline}"
    if best.mean < 1:
        return f"{nobody} is faster than {baseline}; {name} comes closest"
    return f"{name} trains {best.mean:.2f} times as fast as {baseline}"


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
        return f"{epochs} of {units.things(len(run.epochs), 'epoch')}."
    rounds = len({each.round for each in source.results.runs})
    text = (
        f"{units.things(rounds, 'interleaved round')} of {epochs} on identical seeds, roots and "
        "draws."
    )
    if found.problems:
        return text
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
        text += " One round only: speed-ups have no interval."
    return text


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
        cards = [_card(source, found, index, name) for index, name in enumerate(source.names)]
    rows = math.ceil(len(cards) / _CARDS_A_ROW)
    columns = math.ceil(len(cards) / rows)
    return tag("div", cards, class_="cards", style=f"--columns:{columns}")


def _run_cards(source: Source, found: Findings) -> list[Markup]:
    """A single run's figures, a card each."""
    run = source.results.runs[0]
    own = found.figures[run.name]
    told = {
        "Epoch": (units.seconds(own.seconds), "mean of the measured epochs"),
        "Traffic": (units.size(sum(own.bytes.values())), _sent(found, run.name)),
    }
    for split, words in (("val", "best validation"), ("test", "test")):
        score = run.accuracy.get(split)
        if score is not None:
            told[f"{words} {source.metric}".capitalize()] = (f"{score:.4f}", "")
    if run.peak_rss_mib:
        told["Peak memory"] = (units.memory(max(run.peak_rss_mib)), "of the largest rank")
    return [
        tag("div", tag("h2", name), tag("p", value, class_="big"), tag("p", words), class_="card")
        for name, (value, words) in told.items()
    ]


def _card(source: Source, found: Findings, index: int, name: str) -> Markup:
    own = found.figures[name]
    told: list[Child] = []
    ratios = [(b, found.ratio(name, b)) for b in found.baselines if b != name]
    # Of the baseline itself the time is what matters, also where there is a second baseline.
    first = found.ratio(name, found.baselines[0]) if found.baselines else None
    if first is not None:
        big = tag("p", f"{first.mean:.2f}", tag("span", "×"), class_="big")
        told.append(tag("p", f"{units.seconds(own.seconds)} an epoch"))
    else:
        big = tag("p", units.seconds(own.seconds), class_="big")
        told.append(tag("p", "an epoch"))
    intervals = [_interval(b, ratio, ratio is first) for b, ratio in ratios if ratio is not None]
    told = [*intervals, *told] if first is not None else [*told, *intervals]
    told.append(tag("p", f"{units.size(sum(own.bytes.values()))} sent, {_sent(found, name)}"))
    badges = [tag("span", word, class_="badge") for word in _badges(found, name)]
    swatch = tag("span", class_=f"swatch e{index % 8}", aria_hidden="true")
    heading = tag("h2", swatch, tag("span", breakable(name)), badges)
    return tag("div", heading, big, told, class_="card")


def _badges(found: Findings, name: str) -> Sequence[str]:
    badges = ["baseline"] if found.baselines and name == found.baselines[0] else []
    return [*badges, "approximate"] if name in found.approximate else badges


def _interval(baseline: str, ratio: Ratio, is_first: bool) -> Markup:
    """Words on a ratio; the first one's number stands above them already."""
    text = f"as fast as {baseline}" if is_first else f"{ratio.mean:.2f}× as fast as {baseline}"
    if ratio.low is not None and ratio.high is not None:
        interval = f"{CONFIDENCE:.0%} interval {ratio.low:.2f} to {ratio.high:.2f}"
    else:
        interval = "one round, no interval"
    return tag("p", text, tag("br"), tag("small", interval))


def _sent(found: Findings, name: str) -> str:
    """Feature bytes against the first baseline's, where that may be told."""
    own = found.figures[name].bytes["feature"]
    if not found.baselines or found.problems or name == found.baselines[0] or not own:
        return f"{units.size(own)} of it features"
    factor = found.figures[found.baselines[0]].bytes["feature"] / own
    return (
        f"{units.three_digits(factor)}× fewer feature bytes"
        if factor >= 1.005
        else (f"{units.size(own)} of it features")
    )


def ratios_section(source: Source, found: Findings) -> Child:
    """Speed-ups on an axis, a chart for each baseline."""
    colours = {name: index % 8 for index, name in enumerate(source.names)}
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
