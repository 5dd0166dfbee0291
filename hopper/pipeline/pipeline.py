"""Plans iterations and reads their rows ahead of training (DistDGLv2, section 4.2).

The schedule of roots and the draws are functions of seed, epoch and iteration, so training does not
affect what later iterations read. One thread plans, another reads rows, and iterations are trained
in the order of the schedule. A run is therefore the same, bit for bit, with and without the
pipeline. Learnable rows are requested with the plan but read when the iteration is trained, since
earlier iterations change them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numba
import torch

from hopper.engines import Plan, StepReport, TrainStep
from hopper.features import PartitionedRows
from hopper.micrograph.route import RootSchedule
from hopper.pipeline.hand_over import Closed, HandOver
from hopper.pipeline.window import Window
from hopper.run_log import Stage

Seconds = dict[Stage, float]
"""seconds by stage"""

_NO_TURN: Final = nullcontext()
_UNLIMITED: Final = sys.maxsize


@dataclass(frozen=True)
class Prepared:
    """An iteration that is ready to be trained.

    Attributes
    ----------
    plan: its plan.
    inputs: the result of :meth:`TrainStep.read`.
    rows: the source that its rows are read from, with counts of its own.
    seconds: time by stage that the pipeline's threads spent on it.
    """

    plan: Plan
    inputs: Any
    rows: PartitionedRows
    seconds: Seconds


class Pipeline:
    """Prepares and trains the remaining iterations of a run.

    It is a context manager that ends its threads. An error in one of them is raised by
    :meth:`train_next`, with its own traceback.

    Parameters
    ----------
    engine: makes plans, reads rows and trains.
    schedule: the roots of each iteration.
    moments: epoch and iteration of each that is to be trained, in order.
    """

    def __init__(
        self,
        engine: TrainStep[Any, Any],
        schedule: RootSchedule,
        moments: Iterable[tuple[int, int]],
    ) -> None:
        self._engine, self._schedule, self._state = engine, schedule, engine.state
        self._moments = iter(moments)
        config = self._state.config.pipeline
        self._planned: HandOver[tuple[Plan, Seconds]] = HandOver(config.depth, config.nbytes)
        self._read: HandOver[Prepared] = HandOver(config.reads, config.nbytes)
        self._epoch, self._begun, self._has_ended = -1, 0, False
        self._most = _UNLIMITED
        """most plans that may be begun in all"""
        self._state_changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        if config.depth:
            # An error of the planning thread goes to both queues, so that training ends at once.
            self._start("plan", self._plan_ahead, self._planned, self._read)
            self._start("read", self._read_ahead, self._read)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """End the threads. Every rank must call this, except one that has failed."""
        self._stop_planning("ending the pipeline", agrees=error_type is None)
        with self._state_changed:
            self._has_ended = True
            self._state_changed.notify_all()
        self._planned.close()
        self._read.close()
        if error_type is None:
            for thread in self._threads:
                thread.join()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Begin no plans during the block, which may take long.

        Otherwise a rank might wait for a plan that another rank does not begin, since each rank
        limits its plans by its own bytes. Every rank must call this.
        """
        if not self._plans_together:
            yield
            return
        self._stop_planning("resting the pipeline")
        yield
        with self._state_changed:
            self._most = _UNLIMITED
            self._state_changed.notify_all()

    @property
    def _plans_together(self) -> bool:
        """Return whether ranks exchange messages to make plans."""
        return bool(self._threads) and self._engine.talks_to_plan

    def _stop_planning(self, operation: str, *, agrees: bool = True) -> None:
        """Begin no more plans, except those that any rank has begun, which all ranks must make.

        Parameters
        ----------
        agrees: whether to ask the other ranks, which must then call this too.
        """
        with self._state_changed:
            self._most = self._begun
        if agrees and self._plans_together:
            begun_here = torch.tensor([self._most])
            begun = self._state.cluster.all_gather(begun_here, "control", operation)
            with self._state_changed:
                self._most = int(begun.max())
                self._state_changed.notify_all()
            self._planned.wake()

    def start_epoch(self, epoch: int) -> None:
        """Tell the threads that ``epoch`` begins, and that its models are known."""
        with self._state_changed:
            self._epoch = epoch
            self._state_changed.notify_all()

    def train_next(self) -> StepReport:
        """Train the next iteration.

        Raises
        ------
        The error of preparing this iteration or a later one, or of training this one.
        """
        if not self._threads:
            return self._engine.train_step(self._schedule.batch(*next(self._moments)))
        state = self._state
        with state.log.stage("wait", operation="pipeline"):
            prepared = self._read.take()
        state.log.add_stage_seconds(prepared.seconds)
        report = self._engine.train(prepared.plan, prepared.inputs)
        state.rows.take_over(prepared.rows)
        return report

    def _start(self, name: str, work: Callable[[], None], *out: HandOver[Any]) -> None:
        # numba's number of threads and CUDA's device are settings of each thread.
        threads, device = numba.get_num_threads(), self._state.cluster.device

        def run() -> None:
            """Do the thread's work, and hand on an error through its ``out``."""
            try:
                numba.set_num_threads(threads)
                if device.type == "cuda":
                    torch.cuda.set_device(device)
                work()
            except Closed:
                pass
            except BaseException as error:
                for queue in out:
                    queue.fail(error)

        thread = threading.Thread(target=run, name=f"hopper-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _plan_ahead(self) -> None:
        log = self._state.log
        for epoch, iteration in self._moments:
            if not self._may_plan(epoch):
                return
            log.set_context(epoch=epoch, iteration=iteration, thread="plan")
            plan = self._engine.plan_and_ask(self._schedule.batch(epoch, iteration))
            self._planned.put((plan, log.take_stage_seconds()), plan.nbytes)
        self._planned.pause()

    def _may_plan(self, epoch: int) -> bool:
        """Wait until another plan may be begun, and return whether it may."""
        with suppress(Closed):
            self._planned.await_room(unless=self._is_owed)
        with self._state_changed:
            if not self._is_decided(epoch):
                self._planned.pause()
            self._state_changed.wait_for(
                lambda: (
                    self._has_ended
                    or self._is_owed()
                    or (self._begun < self._most and self._is_decided(epoch))
                )
            )
            if self._begun >= self._most:
                return False
            self._begun += 1
            return True

    def _is_owed(self) -> bool:
        """Return whether another rank has begun a plan and waits for this one to begin it too."""
        return self._begun < self._most < _UNLIMITED

    def _is_decided(self, epoch: int) -> bool:
        return epoch <= self._epoch or not self._engine.models.stop_apart

    def _read_ahead(self) -> None:
        log, window = self._state.log, Window(self._engine, self._planned)
        while True:
            plan, seconds = window.take()
            nbytes = plan.nbytes + self._row_bytes(plan)
            self._read.await_room(nbytes)
            log.set_context(epoch=plan.batch.epoch, iteration=plan.batch.iteration, thread="read")
            prepared = self._read_rows(plan, window.turn())
            for stage, stage_seconds in log.take_stage_seconds().items():
                seconds[stage] += stage_seconds
            self._read.put(replace(prepared, seconds=seconds), nbytes)

    def _read_rows(self, plan: Plan, turn: AbstractContextManager[None] = _NO_TURN) -> Prepared:
        rows = self._state.rows.with_own_counts()
        with rows.one_operation(), turn:
            inputs = self._engine.read(plan, rows)
        rows.take_device_lookups()
        return Prepared(plan, inputs, rows, {})

    def _row_bytes(self, plan: Plan) -> int:
        """Return the bytes of features that are in memory once a plan's rows have been read."""
        state, total = self._state, 0
        tables, schema = state.request.reads.feature_tables, state.request.schema
        for name, groups in plan.reads.items():
            table = tables.get(name)
            if table is None:
                continue
            in_place = state.trainer.reads_in_place and state.rows.is_mapped(table)
            width = schema.table(table).feature_dim or 0
            for ids in groups:
                copied = ids.size
                if in_place:
                    copied -= int(state.rows.is_local(table, ids).sum())
                total += copied * width * state.trainer.dtype.itemsize
        return total


def moments_left(
    epoch: int, iteration: int, iterations: int, epochs: int
) -> Iterator[tuple[int, int]]:
    """Yield (epoch, iteration) from the given one to the end of a run."""
    while epoch < epochs:
        for remaining in range(iteration, iterations):
            yield epoch, remaining
        epoch, iteration = epoch + 1, 0
