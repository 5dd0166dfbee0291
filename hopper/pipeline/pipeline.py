"""Iterations that are planned and read ahead of the one that is computed (DistDGLv2, section 4.2).

The schedule of roots and the draws are functions of seed, epoch and iteration, so nothing that is
computed decides what will be read. Plans are made in one thread, rows are read in another, and
whatever was prepared is trained in the order of the schedule: a run is the same, bit for bit, with
and without. Learnable rows are asked for with the plan, and read when an iteration is trained,
since the ones before it change them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numba
import torch

from hopper.engines.engine import Engine, Plan, StepReport
from hopper.features import PartitionedRows
from hopper.micrograph.route import RootSchedule
from hopper.pipeline.hand_over import Closed, HandOver
from hopper.pipeline.window import Window
from hopper.run_log import Stage

Seconds = dict[Stage, float]
"""by stage"""

_NO_TURN: Final = nullcontext()
_ANY: Final = sys.maxsize


@dataclass(frozen=True)
class Prepared:
    """An iteration to be trained.

    Attributes
    ----------
    inputs: as of :meth:`Engine.read`.
    rows: what reading them has counted, and what it still will.
    seconds: by stage, of the threads that made it.
    """

    plan: Plan
    inputs: Any
    rows: PartitionedRows
    seconds: Seconds


class Pipeline:
    """Prepares the iterations of a run, from a moment on, and trains them.

    Used as a context, which ends its threads. An error in one of them is raised where the iteration
    would be trained, with its own traceback.

    Parameters
    ----------
    epoch, iteration: of the first. epochs: of the run.
    """

    def __init__(
        self,
        engine: Engine[Any, Any],
        schedule: RootSchedule,
        epoch: int,
        iteration: int,
        epochs: int,
    ) -> None:
        self._engine, self._schedule, self._state = engine, schedule, engine.state
        self._moments = _moments(epoch, iteration, schedule.iterations, epochs)
        own = self._state.config.pipeline
        self._planned: HandOver[tuple[Plan, Seconds]] = HandOver(own.depth, own.nbytes)
        self._read: HandOver[Prepared] = HandOver(own.reads, own.nbytes)
        self._epoch, self._begun, self._has_ended = -1, 0, False
        self._most = _ANY
        """plans that are begun at most"""
        self._told = threading.Condition()
        self._threads: list[threading.Thread] = []
        if own.depth:
            # Who trains hears of an error in either thread at once.
            self._start("plan", self._plan_ahead, self._planned, self._read)
            self._start("read", self._read_ahead, self._read)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends what runs ahead; every rank has to call it, unless it has failed."""
        self._stop_planning("ending the pipeline", agrees=kind is None)
        with self._told:
            self._has_ended = True
            self._told.notify_all()
        self._planned.close()
        self._read.close()
        if kind is None:
            for thread in self._threads:
                thread.join()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Within it, which may last, no rank waits for a plan that another one does not begin:
        what bounds plans are bytes, which every rank has its own of. Every rank has to call it."""
        if not self._plans_together:
            yield
            return
        self._stop_planning("resting the pipeline")
        yield
        with self._told:
            self._most = _ANY
            self._told.notify_all()

    @property
    def _plans_together(self) -> bool:
        """Whether ranks wait for each other's plans."""
        return bool(self._threads) and self._engine.talks_to_plan

    def _stop_planning(self, operation: str, *, agrees: bool = True) -> None:
        """Begin no more plans, but those that any rank has begun: these all have to make.

        Parameters
        ----------
        agrees: whether the other ranks are asked, who have to call it then.
        """
        with self._told:
            self._most = self._begun
        if agrees and self._plans_together:
            own = torch.tensor([self._most])
            begun = self._state.cluster.all_gather(own, "control", operation)
            with self._told:
                self._most = int(begun.max())
                self._told.notify_all()
            self._planned.wake()

    def start_epoch(self, epoch: int) -> None:
        """Say that the epoch before has ended, and all was decided that it decides."""
        compares = self._engine.compares_iterations(epoch)
        self._read.allow(1 if compares else self._state.config.pipeline.reads)
        with self._told:
            self._epoch = epoch
            self._told.notify_all()

    def train_next(self) -> StepReport:
        """Train the next iteration.

        Raises
        ------
        Whatever preparing it, or one after it, has raised; whatever training it does.
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
        # numba's number of threads, and CUDA's device, are every thread's own.
        threads, device = numba.get_num_threads(), self._state.cluster.device

        def run() -> None:
            try:
                numba.set_num_threads(threads)
                if device.type == "cuda":
                    torch.cuda.set_device(device)
                work()
            except Closed:
                pass
            except BaseException as error:
                for each in out:
                    each.fail(error)

        thread = threading.Thread(target=run, name=f"hopper-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _plan_ahead(self) -> None:
        log = self._state.log
        for epoch, iteration in self._moments:
            if not self._may_plan(epoch):
                return
            log.within(epoch=epoch, iteration=iteration, thread="plan")
            plan = self._engine.plan_and_ask(self._schedule.batch(epoch, iteration))
            self._planned.put((plan, log.take_stage_seconds()), plan.nbytes)
        self._planned.pause()

    def _may_plan(self, epoch: int) -> bool:
        """Whether another plan is to be begun; waits until that is known."""
        with suppress(Closed):
            self._planned.await_room(unless=self._is_owed)
        with self._told:
            if not self._is_decided(epoch):
                self._planned.pause()
            self._told.wait_for(
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
        """Whether another rank has begun a plan that this one has not, and waits for it."""
        return self._begun < self._most < _ANY

    def _is_decided(self, epoch: int) -> bool:
        return epoch <= self._epoch or self._engine.sees_epoch(epoch)

    def _read_ahead(self) -> None:
        log, window = self._state.log, Window(self._engine, self._planned)
        while True:
            plan, seconds = window.take()
            nbytes = plan.nbytes + self._row_bytes(plan)
            self._read.await_room(nbytes)
            log.within(epoch=plan.batch.epoch, iteration=plan.batch.iteration, thread="read")
            prepared = self._read_rows(plan, window.turn())
            for name, each in log.take_stage_seconds().items():
                seconds[name] += each
            self._read.put(replace(prepared, seconds=seconds), nbytes)

    def _read_rows(self, plan: Plan, turn: AbstractContextManager[None] = _NO_TURN) -> Prepared:
        rows = self._state.rows.counted_apart()
        with rows.one_operation(), turn:
            inputs = self._engine.read(plan, rows)
        rows.take_device_lookups()
        return Prepared(plan, inputs, rows, {})

    def _row_bytes(self, plan: Plan) -> int:
        """Of the features that are held once a plan's were read."""
        state, total = self._state, 0
        tables, schema = state.request.reads.feature_tables, state.request.schema
        for name, groups in plan.reads.items():
            table = tables.get(name)
            if table is None:
                continue
            in_place = state.trainer.reads_in_place and state.rows.is_mapped(table)
            width = schema.table(table).feature_dim or 0
            for ids in groups:
                held = ids.size
                if in_place:
                    held -= int(state.rows.is_local(table, ids).sum())
                total += held * width * state.trainer.dtype.itemsize
        return total


def _moments(epoch: int, iteration: int, iterations: int, epochs: int) -> Iterator[tuple[int, int]]:
    """Epoch and iteration, from one on to the end of a run."""
    while epoch < epochs:
        for each in range(iteration, iterations):
            yield epoch, each
        epoch, iteration = epoch + 1, 0
