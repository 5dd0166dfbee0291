"""Colours are told apart with any colour vision, and words on them can be read."""

from itertools import combinations

import pytest

from hopper.cluster.traffic import CAUSES as ALL_CAUSES
from hopper.config.engines import BASELINES
from hopper.display.palette import (
    CAUSES,
    COLOURS,
    ENGINES,
    STAGES,
    contrast,
    shades_of_engines,
    text_on,
)
from hopper.engines import ENGINE_CLASSES
from hopper.timing.run_log import STAGES as ALL_STAGES

# How linear red, green and blue are seen: Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """The CIELAB values of a colour as a vision sees it, with the white of sRGB."""
    shares = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    r, g, b = (
        min(1.0, max(0.0, sum(a * c for a, c in zip(row, linear, strict=True))))
        for row in VISIONS[vision]
    )
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def distance(first: str, second: str, vision: str) -> float:
    a, b = lab(first, vision), lab(second, vision)
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("ground", ["light", "dark"])
def test_colours_of_one_picture_are_told_apart(vision, ground):
    for names in (ENGINES.values(), STAGES.values(), CAUSES.values()):
        hexes = {name: getattr(COLOURS[name], ground) for name in names}
        for (first, a), (second, b) in combinations(hexes.items(), 2):
            # 2.3 is just noticeable.
            assert distance(a, b, vision) > 13, (first, second)


def test_everything_has_a_colour_of_its_own():
    assert set(ENGINES) == {*ENGINE_CLASSES, *BASELINES}
    assert tuple(STAGES) == ALL_STAGES
    assert tuple(CAUSES) == ALL_CAUSES
    assert len(set(ENGINES.values())) == len(ENGINES)
    assert {*ENGINES.values(), *STAGES.values(), *CAUSES.values()} <= set(COLOURS)


def test_words_on_a_colour_can_be_read():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    for colour in COLOURS.values():
        for ground in colour:
            assert contrast(text_on(ground), ground) >= 4.5, ground


def test_an_engine_has_the_same_colour_in_every_picture():
    labels = ["hop:merge=off", "model_centric", "hop", "hop:merge=1", "package.module:Mine"]
    shades = shades_of_engines(labels)
    assert shades["hop"] == shades_of_engines(["hop"])["hop"] == ("blue", 0)
    assert sorted(shades) == sorted(labels)
    assert len(set(shades.values())) == len(labels)
