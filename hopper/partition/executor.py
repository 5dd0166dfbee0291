"""Where the servers' parts are built: in this process, or as tasks of a Ray cluster, whose machines
share the file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from hopper.cluster.ray_cluster import connect_to_ray, one_line
from hopper.errors import RequestError
from hopper.graph.memory_budget import MemoryBudget, limit_memory, memory_budget
from hopper.partition.write import BuildContext
from hopper.timing.phases import Progress, Silent

T = TypeVar("T")
Parts = Sequence[Sequence[Any]]
"""the arguments of each part, besides context and progress"""


class Executor:
    """Builds parts that do not depend on each other, one after another in this process, whose
    kernels use all cores."""

    def run(
        self, build: Callable[..., T], context: BuildContext, progress: Progress, parts: Parts
    ) -> list[T]:
        """Call ``build(context, progress, *part)`` for every part; return the results in order. A
        part that fails in another process is a :class:`RequestError` that names it."""
        return [build(context, progress, *part) for part in parts]


class RayExecutor(Executor):
    """Builds parts by tasks of a Ray cluster, ``count`` at a time, or as many as it has CPUs."""

    def __init__(self, ray: Any, where: str, count: int | None) -> None:
        self._ray, self._where = ray, where
        self._count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray must not retry a task, because its files may be half written.
        self._task = ray.remote(max_retries=0)(_build)

    def run(
        self, build: Callable[..., T], context: BuildContext, progress: Progress, parts: Parts
    ) -> list[T]:
        """Build the parts; progress advances part by part."""
        results, running = dict[int, T](), dict[Any, int]()
        waiting = iter(enumerate(parts))
        try:
            while len(results) < len(parts):
                for number, part in islice(waiting, self._count - len(running)):
                    running[self._task.remote(build, context, memory_budget(), part)] = number
                (task,), _ = self._ray.wait(list(running))
                number = running.pop(task)
                try:
                    results[number], units = self._ray.get(task)
                except self._ray.exceptions.RayError as error:
                    what = f"--on {self._where}: {build.__name__} {number}"
                    cause = one_line(getattr(error, "cause", None) or error)
                    raise RequestError(f"{what}: {cause}") from None
                progress.advance(units)
            return [results[number] for number in range(len(parts))]
        finally:
            # The results of these are not needed, and their files are about to be removed.
            for task in running:
                self._ray.cancel(task)
            if running:
                self._ray.wait(list(running), num_returns=len(running))


class _Counter(Silent):
    """Adds up the progress of a task."""

    units = 0

    def advance(self, units: int) -> None:
        self.units += units


def _build(
    build: Callable[..., T], context: BuildContext, size: MemoryBudget, part: Sequence[Any]
) -> tuple[T, int]:
    """Build a part in a task; return its result and the units of its progress."""
    counter = _Counter()
    with limit_memory(size):
        return build(context, counter, *part), counter.units


@contextmanager
def open_executor(where: str, count: int | None = None) -> Iterator[Executor]:
    """Open the executor that builds servers' parts: "local" is this process, "ray" a Ray cluster of
    this machine, which is shut down at the end, and "ray:HOST:PORT" a running cluster, with
    ``count`` tasks at a time, None = as many as the cluster has CPUs."""
    kind, colon, address = where.partition(":")
    if where != "local" and (kind != "ray" or (colon and not address)):
        raise RequestError(f"--on: expected local, ray or ray:HOST:PORT, given {where!r:.100}")
    if count is not None and (where == "local" or count < 1):
        text = f"{count} with --on {where}"
        raise RequestError(f"--workers: expected at least 1, of --on ray alone, given {text}")
    if where == "local":
        yield Executor()
        return
    with connect_to_ray(f"--on {where}", "ray:HOST:PORT", address, count) as ray:
        yield RayExecutor(ray, where, count)
