"""The iterations of an engine in a pipeline: plans and rows run ahead of training.

Learnable rows are requested with the plan but read when the iteration is trained, since earlier
iterations change them. So a run is the same, bit for bit, with and without the pipeline.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cache_server.available_memory import available_memory
from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Traffic
from hopper.engines import Plan, StepReport, TrainStep
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.hetero.learnable import distinct_by_table
from hopper.micrograph.route import GlobalBatch
from hopper.partition.memory import format_bytes
from hopper.pipeline import Lookahead, Moment, Pipeline, Stage
from hopper.timing.run_log import Stage as LoggedStage

Seconds = dict[LoggedStage, float]
"""seconds by stage of the log that the pipeline's threads spent"""


@dataclass(frozen=True)
class Prepared:
    """An iteration that is ready to be trained; ``rows`` counts for itself what is read for it."""

    plan: Plan
    inputs: Any
    rows: PartitionedRows
    seconds: Seconds


class EnginePipeline(Pipeline[Prepared]):
    """Prepares and trains the iterations of an engine that are left of a run, in its stages."""

    def __init__(
        self,
        engine: TrainStep[Any, Any],
        stages: Sequence[Stage],
        iterations: int,
        epochs: int,
        start: tuple[int, int] = (0, 0),
    ) -> None:
        self._engine = engine
        super().__init__(
            stages,
            iterations,
            epochs,
            start=start,
            ahead=engine.state.config.pipeline.depth > 0,
            agree=partial(_largest, engine.state.cluster) if engine.talks_to_plan else None,
        )

    def train_next(self) -> StepReport:
        """Train the next iteration; raises errors as :meth:`Pipeline.take` does, and its own."""
        log = self._engine.state.log
        with log.stage("wait", operation="pipeline") if self._ahead else nullcontext():
            prepared = self.take()
        log.add_stage_seconds(prepared.seconds)
        report = self._engine.train(prepared.plan, prepared.inputs)
        self._engine.state.rows.take_over(prepared.rows)
        return report


def _largest(cluster: Cluster, number: int) -> int:
    """Return the largest number of all ranks. A run without pipeline sends nothing for it, so it
    does not count."""
    uncounted = copy.copy(cluster)
    uncounted.traffic = Traffic()
    return int(uncounted.all_gather(torch.tensor([number]), "control", "comparing plans").max())


def engine_stages(
    engine: TrainStep[Any, Any], batches: Callable[[int, int], GlobalBatch]
) -> list[Stage]:
    """Return the stages that prepare an engine's iterations, of which each ends in a
    :class:`Prepared`; ``batches`` returns the global batch of an epoch and iteration."""
    state, config = engine.state, engine.state.config.pipeline
    log, tables = state.log, state.request.reads.feature_tables
    # What reads all neighbours reads most rows in every iteration.
    swept = () if -1 in state.config.sampler.sizes else tables.values()
    reads_others = engine.engine.spec.reads_remote_rows
    lookahead, has_room = Lookahead(state.rows, swept, config, reads_others), False
    reach = lookahead.reach
    if engine.talks_to_plan and config.depth:
        # Ranks that wait for each other make equally many plans.
        reach = _largest(state.cluster, reach)

    def begin(moment: tuple[int, int], thread: str) -> None:
        if config.depth:
            log.set_context(epoch=moment[0], iteration=moment[1], thread=thread)

    def end(seconds: Seconds) -> Seconds:
        if config.depth:
            for stage, stage_seconds in log.take_stage_seconds().items():
                seconds[stage] = seconds.get(stage, 0.0) + stage_seconds
        return seconds

    def plan(moment: Moment) -> tuple[Plan, Seconds]:
        nonlocal has_room
        begin(moment, "plan")
        made = engine.plan_and_ask(batches(*moment))
        if not has_room:
            at_once, foreseen = (2, reach * made.nbytes) if config.depth else (1, 0)
            _require_room(input_bytes(made), foreseen, state.cluster.rank, at_once)
            has_room = True
        return made, end({})

    def read(planned: tuple[Plan, Seconds]) -> Prepared:
        plan, seconds = planned
        begin((plan.batch.epoch, plan.batch.iteration), "read")
        rows = state.rows.with_own_counts()
        span = log.stage("gather", operation="rows of coming iterations")
        with span if lookahead.reads_early else nullcontext():
            view = lookahead.read_early(rows)
        with lookahead.turn(view):
            inputs = engine.read(plan, view)
        rows.take_device_lookups()
        return Prepared(plan, inputs, rows, end(seconds))

    def foresee(planned: Sequence[tuple[Plan, Seconds]]) -> None:
        plans = [plan for plan, _ in planned]
        lookahead.foresee(
            [distinct_by_table(plan.reads, tables) for plan in plans],
            own_only=not all(plan.reads_ahead for plan in plans),
        )

    def input_bytes(plan: Plan) -> int:
        """Return the bytes of a plan, and of its features that are read into memory."""
        total, local = plan.nbytes, state.rows.local
        for name, groups in plan.reads.items():
            table = tables.get(name)
            if table is None:
                continue
            in_place = state.trainer.reads_in_place and not local.are_copied(table)
            width = state.request.schema.table(table).feature_dim or 0
            for ids in groups:
                left = int(state.rows.is_local(table, ids).sum()) if in_place else 0
                total += (ids.size - left) * width * state.trainer.dtype.itemsize
        return total

    nbytes = config.nbytes
    return [
        Stage("plan", plan, config.depth, nbytes, lambda planned: planned[0].nbytes),
        Stage("read", read, config.reads, nbytes, lambda p: input_bytes(p.plan), reach, foresee),
    ]


def _require_room(nbytes: int, foreseen: int, rank: int, at_once: int) -> None:
    """Refuse a run whose first iteration, which reads so many bytes, and plans that are foreseen
    then do not fit memory."""
    free, needed = available_memory(), at_once * nbytes + foreseen
    if needed > free:
        raise RequestError(
            f"train.batch_size: rank {rank} reads {format_bytes(nbytes)} for its first iteration "
            f"and holds {at_once} at a time, but its share of the machine's memory leaves "
            f"{format_bytes(free)}; expected at least {format_bytes(needed - free)} more for each "
            "rank here, or fewer roots or fanouts"
        )
