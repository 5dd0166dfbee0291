"""The schedule as text and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.image import imread

from hopper.cli.schedule_picture import draw_schedule, tell_schedule
from hopper.micrograph.merge import TimeSteps

STEPS = TimeSteps(
    ranks=np.array([[0, 1], [1, 1]]),
    groups=[[np.arange(3), np.arange(5)], [np.arange(0), np.arange(2)]],
)


def test_text_names_models_with_their_roots_in_order() -> None:
    assert tell_schedule(STEPS) == [["m0 (3)", ""], ["m1 (0)", "m0 (5), m1 (2)"]]


def test_a_picture_is_written_whole(tmp_path: Path) -> None:
    draw_schedule(STEPS, tmp_path / "steps.png", "two models")
    height, width, _ = imread(tmp_path / "steps.png").shape
    assert height > 200
    assert width > height
    assert [path.name for path in tmp_path.iterdir()] == ["steps.png"]
