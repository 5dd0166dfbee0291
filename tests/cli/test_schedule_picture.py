"""The schedule as text."""

from __future__ import annotations

import numpy as np

from hopper.cli.schedule_picture import tell_schedule
from hopper.micrograph.merge import TimeSteps

STEPS = TimeSteps(
    ranks=np.array([[0, 1], [1, 1]]),
    groups=[[np.arange(3), np.arange(5)], [np.arange(0), np.arange(2)]],
)


def test_text_names_models_with_their_roots_in_order() -> None:
    assert tell_schedule(STEPS) == [["m0 (3)", ""], ["m1 (0)", "m0 (5), m1 (2)"]]
