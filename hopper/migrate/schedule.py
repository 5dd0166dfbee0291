"""Which model a rank trains at which time step (HopGNN, section 5.1), as pure functions.

At time step t, rank r trains model (r - t) mod N on group (that model, r) and then passes the
model on to rank r + 1. So each time step is a permutation of the models over the ranks, and after
N steps every model has met every one of its groups once.
"""

from __future__ import annotations

from typing import NamedTuple


class Visit(NamedTuple):
    """What one rank does in one time step."""

    step: int
    model: int
    """the model to train, on this rank's group of it"""
    receive_from: int | None
    """the rank that the model comes from; None before the first time step"""
    pass_to: int | None
    """the rank that it goes to; None after the last time step"""


def visits(rank: int, ranks: int) -> list[Visit]:
    """The time steps of one iteration as ``rank`` lives them, in order."""
    return [
        Visit(
            step=step,
            model=(rank - step) % ranks,
            receive_from=(rank - 1) % ranks if step > 0 else None,
            pass_to=(rank + 1) % ranks if step < ranks - 1 else None,
        )
        for step in range(ranks)
    ]
