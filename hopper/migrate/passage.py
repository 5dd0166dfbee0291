"""Moves models from their docks to those of other ranks between two time steps."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hopper.migrate.dock import Dock
from hopper.migrate.schedule import Move, Visit
from hopper.migrate.transport import Cargo, Transport


def move_models(
    transport: Transport,
    docks: Mapping[int, Dock],
    moment: tuple[int, int, int],
    before: Visit,
    now: Visit,
    *,
    homeward: bool = False,
) -> None:
    """Send the models that leave after one time step, and receive those due before the next.

    Parameters
    ----------
    docks: by model; models of the same shape may share one.
    moment: epoch, iteration and the coming time step.
    before, now: this rank's visits at the last and at the coming time step.
    homeward: whether models go to the rank with their own parameters, so that only gradients and
        loss travel.

    Raises
    ------
    As :meth:`Transport.exchange`.
    """
    leaving = {move: docks[move.model].leave(move.model) for move in before.departures}
    arriving = {move: docks[move.model].empty_buffer() for move in now.arrivals}

    def cargo(buffers: Mapping[Move, Tensor]) -> list[Cargo]:
        return [
            Cargo(move, docks[move.model].accumulated_in(buffer) if homeward else buffer)
            for move, buffer in buffers.items()
        ]

    transport.exchange(moment, cargo(leaving), cargo(arriving))
    for move, buffer in leaving.items():
        docks[move.model].reuse(buffer)
    for move, buffer in arriving.items():
        docks[move.model].enter(move.model, buffer)
