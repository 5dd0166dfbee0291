"""Build servers' parts as tasks of a Ray cluster, whose machines share the file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hopper.errors import RequestError
from hopper.graph.memory_budget import MemoryBudget, limit_memory, memory_budget
from hopper.partition.workers import Construction, ThisProcess, Workers
from hopper.phases import Progress
from hopper.ray_cluster import connect_to_ray, one_line

T = TypeVar("T")
_HERE, _RAY = "local", "ray"


@contextmanager
def open_workers(where: str, count: int | None = None) -> Iterator[Workers]:
    """Open the workers that build servers' parts.

    Parameters
    ----------
    where: "local": this process; "ray": a Ray cluster of this machine, which is shut down at the
        end; "ray:HOST:PORT": a running cluster.
    count: number of Ray tasks at a time; None = as many as the cluster has CPUs.

    Raises
    ------
    RequestError: ``where`` or ``count`` is invalid, or Ray is not installed or does not start.
    """
    kind, _, address = where.partition(":")
    if where != _HERE and (kind != _RAY or where == f"{_RAY}:"):
        raise RequestError(f"--on: expected local, ray or ray:HOST:PORT, given {where!r:.100}")
    if count is not None and (where == _HERE or count < 1):
        text = f"{count} with --on {where}"
        raise RequestError(f"--workers: expected at least 1, of --on ray alone, given {text}")
    if where == _HERE:
        yield ThisProcess()
        return
    with connect_to_ray(f"--on {where}", "ray:HOST:PORT", address, count) as ray:
        yield RayWorkers(ray, where, count)


class RayWorkers:
    """Builds parts by tasks of a Ray cluster.

    Parameters
    ----------
    ray: the module ``ray``, connected to a cluster.
    where: the value of ``--on``, for errors.
    count: number of tasks at a time; None = as many as the cluster has CPUs.
    """

    def __init__(self, ray: Any, where: str, count: int | None) -> None:
        self._ray = ray
        self._where = where
        self._count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray must not retry a task, because its files may be half written.
        self._task = ray.remote(max_retries=0)(_build)

    def run(
        self,
        build: Callable[..., T],
        construction: Construction,
        progress: Progress,
        parts: Sequence[Any],
    ) -> list[T]:
        """Build all parts, and return their results in order; progress advances part by part.

        Raises
        ------
        RequestError: a part failed. The text names it, its number and the error.
        """
        results: dict[int, T] = {}
        waiting, running = list(enumerate(parts)), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < self._count:
                    number, part = waiting.pop(0)
                    task = self._task.remote(build, construction, memory_budget(), part)
                    running[task] = number
                for task in self._ray.wait(list(running))[0]:
                    number = running.pop(task)
                    results[number], units = self._result(task, f"{build.__name__} {number}")
                    progress.advance(units)
        finally:
            self._end(list(running))
        return [results[number] for number in range(len(parts))]

    def _end(self, tasks: list[Any]) -> None:
        """Cancel tasks whose results are not needed, before their files are removed."""
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
    """Adds up the progress of a task."""

    def __init__(self) -> None:
        self.units = 0

    def begin(self, phase: str, total: int | None) -> None:
        """Do nothing."""

    def advance(self, units: int) -> None:
        """Add some units."""
        self.units += units

    def end(self, seconds: float) -> None:
        """Do nothing."""


def _build(
    build: Callable[..., T], construction: Construction, size: MemoryBudget, part: Sequence[Any]
) -> tuple[T, int]:
    """Build a part in a task; return its result and the units of its progress."""
    counter = _Counter()
    with limit_memory(size):
        return build(construction, counter, *part), counter.units
