"""Compares what a run recorded with what one process computes. No tests of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopper.bench.parity import RecordedGradient, check_engine, compare_gradients, read_recorded
from hopper.config import make_config
from hopper.engines.reference import Reference
from hopper.features import open_graph


def assert_exact(
    values: Mapping[str, Any],
    world: int,
    name: str = "",
    steps: Sequence[int] | None = None,
    *,
    in_other_orders: bool = True,
) -> tuple[Reference, list[RecordedGradient]]:
    """Assert that loss and gradient of every recorded iteration are those of one process.

    Parameters
    ----------
    values: the run's configuration. world: how many ranks trained it. name: of the case.
    steps: the iterations that were recorded; None = all that were to be.
    in_other_orders: assert that one process computes the same in another order of summation.

    Returns
    -------
    The reference, which computes in one process, and what was recorded.
    """
    config = make_config(dict(values))
    recorded = read_recorded(Path(config.train.run_dir) / "gradients")
    expected_steps = config.train.record_gradients if steps is None else steps
    assert [moment.step for moment in recorded] == list(expected_steps), name
    reference = Reference(config, open_graph(config), world)
    parity = check_engine(name or str(values), "float64", reference, recorded)
    assert parity.gradient_difference < 1e-10, parity
    assert parity.loss_difference < 1e-10, parity
    if in_other_orders:
        _assert_other_orders_round_only(reference, recorded[0], name)
    return reference, recorded


def _assert_other_orders_round_only(
    reference: Reference, moment: RecordedGradient, name: str
) -> None:
    """Assert that another order of summation changes the gradient of one process by rounding."""
    where = moment.epoch, moment.iteration, moment.parameters
    (loss, gradients), (other_loss, others) = (
        reference.gradient(*where, order) for order in (0, 1)
    )
    difference = compare_gradients(moment.step, others, gradients, other_loss, loss)
    assert difference.largest < 1e-10, (name, difference)
    assert difference.loss < 1e-10, (name, difference)
