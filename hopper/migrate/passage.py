"""Models that change ranks between two time steps: out of their docks, over, and into docks."""

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
    """Pass on the models that leave after one time step, and take in those due before the next.

    Parameters
    ----------
    docks: by model; models of the same shape may share one.
    moment: epoch, iteration and the time step that comes.
    homeward: models go where their own parameters are, so that only what they accumulated travels.

    Raises
    ------
    See :meth:`Transport.exchange`.
    """
    leaving = {move: docks[move.model].leave(move.model) for move in before.departures}
    coming = {move: docks[move.model].empty_buffer() for move in now.arrivals}

    def cargo(buffers: Mapping[Move, Tensor]) -> list[Cargo]:
        return [
            Cargo(move, docks[move.model].accumulated_in(buffer) if homeward else buffer)
            for move, buffer in buffers.items()
        ]

    transport.exchange(moment, cargo(leaving), cargo(coming))
    for move, buffer in leaving.items():
        docks[move.model].reuse(buffer)
    for move, buffer in coming.items():
        docks[move.model].enter(move.model, buffer)
