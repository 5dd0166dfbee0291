"""The picture of ``hopper bench faults``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hopper.palette import hex_of

PICTURE_FILE: Final = "picture.webp"
_COLOURS: Final = {"recovered": "green", "named error": "orange", "wrong": "red"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw how soon each run ended or recovered, by case, and the memory of the server that was
    sent nonsense."""
    matrix, fuzz = result.get("matrix"), result.get("fuzz")
    cases = [case["case"] for case in matrix["cases"]] if matrix else []
    figure = Figure(figsize=(11, max(3.5, 1.5 + 0.26 * len(cases))), layout="constrained")
    FigureCanvasAgg(figure)
    shares = [share for share, shown in ((3, matrix), (1, fuzz)) if shown]
    axes = figure.subplots(1, len(shares), width_ratios=shares, squeeze=False)[0]
    if matrix:
        for outcome, colour in _COLOURS.items():
            points = [
                (trial[7], cases.index(trial[1]))
                for trial in matrix["trials"]
                if trial[6] == outcome
            ]
            if points:
                seconds, places = zip(*points, strict=True)
                axes[0].plot(seconds, places, "o", color=hex_of(colour), alpha=0.6, markersize=5,
                             label=f"{outcome}: {len(points)}")  # fmt: skip
        axes[0].set_yticks(range(len(cases)), cases, fontsize=9)
        axes[0].invert_yaxis()
        axes[0].set(xlim=(0, None), xlabel="seconds to the end of the run")
        axes[0].grid(axis="x", alpha=0.3)
        axes[0].legend(fontsize=9)
    if fuzz:
        answered, memory = zip(*fuzz["memory_mib"], strict=True)
        axes[-1].plot([count / 1000 for count in answered], memory, color=hex_of("blue"))
        axes[-1].set(ylim=(0, None), xlabel="thousand requests that make no sense", ylabel="MiB")
    figure.savefig(path, dpi=150, pil_kwargs={"lossless": True})
