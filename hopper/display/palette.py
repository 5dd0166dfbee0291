"""The colours of every picture and page: the same for the same thing, whatever its kind.

They are Okabe and Ito's (Color Universal Design, 2008), which are told apart with any colour
vision, with greys between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple


class Colour(NamedTuple):
    """As #RRGGBB, on a light and on a dark ground."""

    light: str
    dark: str


COLOURS: Final[Mapping[str, Colour]] = {
    "blue": Colour("#0072B2", "#3F97D3"),
    "red": Colour("#D55E00", "#E06A18"),
    "green": Colour("#009E73", "#2BB58C"),
    "orange": Colour("#E69F00", "#E69F00"),
    "pink": Colour("#CC79A7", "#D58AB6"),
    "sky": Colour("#56B4E9", "#86CDF5"),
    "yellow": Colour("#F0E442", "#FBF48A"),
    "grey": Colour("#66707B", "#7A848F"),
    "ink": Colour("#16191D", "#E9EBEE"),
    "pale": Colour("#CFD2D6", "#3B4249"),
    "plain": Colour("#BCC3CA", "#7A848F"),
    "dim": Colour("#4D555E", "#C3C9D0"),
}
ENGINES: Final = {
    "model_centric": "grey",
    "locality": "orange",
    "hop": "blue",
    "zero_hop": "red",
    "cooperative": "green",
    "raf": "pink",
    "p3": "sky",
    "neutronstar": "yellow",
    "naive": "ink",
}
OTHER_ENGINE: Final = "dim"
"""of engines from elsewhere"""
STAGES: Final = {
    "sample": "sky",
    "gather": "blue",
    "compute": "green",
    "migrate": "red",
    "sync": "pink",
    "wait": "pale",
}
CAUSES: Final = {
    "feature": "blue",
    "topology": "pink",
    "model": "red",
    "gradient": "green",
    "partial": "orange",
    "control": "plain",
}
TEXT: Final = "#16191D"
SOFT_TEXT: Final = "#5B626B"
GRID: Final = "#E3E4E1"
_WHITE: Final = "#FFFFFF"
_TINTS: Final = (1.0, 0.68, 0.44, 0.26)
"""how much of its engine's colour a first, second, third and further variant has"""


def hex_of(name: str) -> str:
    """Return a colour of :data:`COLOURS` for white paper."""
    return COLOURS[name].light


def text_on(ground: str) -> str:
    """Choose black or white, by WCAG 2.1's contrast ratio with the colour behind the text."""
    return max((_WHITE, TEXT), key=lambda text: contrast(text, ground))


def contrast(first: str, second: str) -> float:
    """Return WCAG 2.1's contrast ratio of two colours, 1 to 21."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def shades_of_engines(labels: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return, by contender, the name of its engine's colour and the number of its variant. A
    contender without options is the first variant.

    Parameters
    ----------
    labels: as of :class:`hopper.bench.contender.Contender`: the engine, perhaps with options.
    """
    colours: dict[str, tuple[str, int]] = {}
    for label in sorted(dict.fromkeys(labels), key=lambda label: ":" in label):
        name = ENGINES.get(label.partition(":")[0], OTHER_ENGINE)
        before = sum(known == name for known, _ in colours.values())
        colours[label] = name, min(before, len(_TINTS) - 1)
    return colours


def tint_percent(variant: int) -> int:
    """Return how much of a colour a variant has, in per cent."""
    return round(100 * _TINTS[variant])


def _luminance(colour: str) -> float:
    linear = [
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for share in (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
