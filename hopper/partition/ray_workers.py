"""Builds servers' parts as tasks of a Ray cluster, whose machines share the file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hopper.errors import RequestError
from hopper.graph.piece_size import PieceSize, piece_size, pieces_of
from hopper.partition.workers import Construction, ThisProcess, Workers
from hopper.phases import Progress
from hopper.ray_cluster import connect_to_ray, one_line

T = TypeVar("T")
_HERE, _RAY = "local", "ray"


@contextmanager
def open_workers(where: str, count: int | None = None) -> Iterator[Workers]:
    """Who builds the servers' parts; a Ray cluster of one's own is shut down in the end.

    Parameters
    ----------
    where: "local": this process; "ray": a cluster of this machine for a while; "ray:HOST:PORT": one
        that is there.
    count: tasks of Ray at a time; None = as many as the cluster has CPUs.

    Raises
    ------
    RequestError: something else, or no worker; Ray is not installed, or does not start.
    """
    kind, _, address = where.partition(":")
    if where != _HERE and (kind != _RAY or where == f"{_RAY}:"):
        raise RequestError(f"--on: expected local, ray or ray:HOST:PORT, given {where!r:.100}")
    if count is not None and (where == _HERE or count < 1):
        given = f"{count} with --on {where}"
        raise RequestError(f"--workers: expected at least 1, of --on ray alone, given {given}")
    if where == _HERE:
        yield ThisProcess()
        return
    with connect_to_ray(f"--on {where}", "ray:HOST:PORT", address, count) as ray:
        yield RayWorkers(ray, where, count)


class RayWorkers:
    """Builds parts by tasks of a Ray cluster.

    Parameters
    ----------
    ray: the module, connected.
    where: for errors.
    count: as of :func:`open_workers`.
    """

    def __init__(self, ray: Any, where: str, count: int | None) -> None:
        self._ray = ray
        self._where = where
        self._count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # A part that was begun is not begun again: what is half written is an error.
        self._task = ray.remote(max_retries=0)(_build)

    def run(
        self,
        build: Callable[..., T],
        construction: Construction,
        progress: Progress,
        parts: Sequence[Any],
    ) -> list[T]:
        """See :class:`Workers`; progress advances when a part is there.

        Raises
        ------
        RequestError: a part failed; names it, its number and what happened.
        """
        found: dict[int, T] = {}
        waiting, running = list(enumerate(parts)), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < self._count:
                    number, part = waiting.pop(0)
                    task = self._task.remote(build, construction, piece_size(), part)
                    running[task] = number
                for task in self._ray.wait(list(running))[0]:
                    number = running.pop(task)
                    found[number], units = self._result(task, f"{build.__name__} {number}")
                    progress.advance(units)
        finally:
            self._end(list(running))
        return [found[number] for number in range(len(parts))]

    def _end(self, tasks: list[Any]) -> None:
        """End tasks that nobody waits for, before what they write to is removed."""
        for task in tasks:
            self._ray.cancel(task)
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks))

    def _result(self, task: Any, what: str) -> Any:
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            raise RequestError(f"--on {self._where}: {what}: {one_line(cause)}") from None


class _Counter:
    """Adds up what progress there was."""

    def __init__(self) -> None:
        self.units = 0

    def begin(self, phase: str, total: int | None) -> None:
        """Does nothing."""

    def advance(self, units: int) -> None:
        """Add some units."""
        self.units += units

    def end(self, seconds: float) -> None:
        """Does nothing."""


def _build(
    build: Callable[..., T], construction: Construction, size: PieceSize, part: Sequence[Any]
) -> tuple[T, int]:
    """What a task does: a part, and the units of progress that it made."""
    counter = _Counter()
    with pieces_of(size):
        return build(construction, counter, *part), counter.units
