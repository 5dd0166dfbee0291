"""The palette as style: a variable for each colour, and a class for each thing that has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hopper.bench.report.source import Source
from hopper.palette import (
    CAUSES,
    COLOURS,
    SERIES,
    STAGES,
    shades_of_engines,
    text_on,
    tint_percent,
    variants,
)

_ROWS: Final = {"fetched": "blue", "reused": "sky", "local": "green", "cached": "orange"}
"""Colours of input rows, by where they came from."""
_OTHERS: Final = {"plain": "plain", "moving": "dim"}


def colour_classes(source: Source) -> dict[str, str]:
    """Return the class that gives a mark the colour of its engine, by name of the run."""
    engines = {run.name: run.engine for run in source.results.runs}
    labels = [name if name.startswith(engine) else engine for name, engine in engines.items()]
    shades = shades_of_engines(labels)
    classes = {}
    for name, label in zip(engines, labels, strict=True):
        colour, variant = shades[label]
        classes[name] = f"c-{colour}-{variant}"
    return classes


def series_class(index: int) -> str:
    """Return the class that gives a mark the colour of a numbered thing, such as a model."""
    return f"e{index % len(SERIES)}"


def palette_style() -> str:
    """Write the style sheet of the palette: variables for light and dark, and classes.

    A class sets ``--k``, the colour of a mark, and ``--t``, the colour of words on the mark.
    """
    dark = _variables("dark")
    lines = [
        f":root {{ {_variables('light')} }}",
        f':root[data-theme="dark"] {{ {dark} }}',
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}',
    ]
    keys = {f"k-{key}": name for key, name in (_ROWS | _OTHERS | CAUSES | STAGES).items()}
    keys |= {f"e{index}": name for index, name in enumerate(SERIES)}
    lines += [f".{key} {{ --k: var(--{name}); --t: var(--on-{name}); }}"
              for key, name in keys.items()]  # fmt: skip
    lines += [f".by-stage .s-{stage} {{ --k: var(--{name}); }}" for stage, name in STAGES.items()]
    lines += [_variant(name, number) for name in COLOURS for number in variants()]
    return "\n".join(lines)


def _variables(ground: str) -> str:
    hexes: Mapping[str, str] = {name: getattr(colour, ground) for name, colour in COLOURS.items()}
    declarations = [
        f"--{name}: {hex_code}; --on-{name}: {text_on(hex_code)};"
        for name, hex_code in hexes.items()
    ]
    return " ".join(declarations)


def _variant(name: str, number: int) -> str:
    share = tint_percent(number)
    if share == 100:
        return f".c-{name}-{number} {{ --k: var(--{name}); --t: var(--on-{name}); }}"
    mixed = f"color-mix(in srgb, var(--{name}) {share}%, var(--surface))"
    return f".c-{name}-{number} {{ --k: {mixed}; --t: var(--ink); }}"
