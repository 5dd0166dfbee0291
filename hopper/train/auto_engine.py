"""``train.engine = "auto"``: exact engines train a few global batches in turns, the fastest trains.

Rounds are repeated until the fastest engine is shown to be faster than every other, or a limit is
reached: one iteration tells little on a machine with other work. Nothing of a try is kept: each
engine gets a model and an optimiser of its own. What was measured and chosen is written to
``engine.json`` in the run's folder; a resumed run takes its word for it, a replayed one that of the
run it replays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Final

import torch

from hopper.cluster import Cluster
from hopper.config import Config, make_config
from hopper.engines import Engine, Request, engines_of, find_engine
from hopper.errors import RequestError
from hopper.micrograph.route import GlobalBatch
from hopper.paired_ratio import Ratio, paired_ratio
from hopper.train.iteration_cost import measure_iteration
from hopper.train.replay import read_replayed_engine
from hopper.whole_files import write_text

ENGINE_FILE: Final = "engine.json"
LEAST_ROUNDS: Final = 3
"""before an engine may be called slower: of two, a small spread may be chance"""
MOST_ROUNDS: Final = 12
MOST_SECONDS: Final = 60.0
"""after which no further round begins"""


@dataclass(frozen=True)
class Try:
    """One engine's timed iterations, one a round.

    seconds: their median. bytes: the mean of what all ranks sent between servers, of all causes.
    iteration_seconds: by round, those of the slowest rank. times_as_long: as the chosen engine, in
    the rounds of this one; None for the chosen engine itself.
    """

    engine: str
    seconds: float
    bytes: int
    iteration_seconds: tuple[float, ...] = ()
    times_as_long: Ratio | None = None

    def __str__(self) -> str:
        told = f"{self.engine} {self.seconds:.3g} s, {self.bytes / 1e6:.4g} MB"
        ratio = self.times_as_long
        if ratio is None:
            return told
        if ratio.low is None or ratio.high is None:
            return f"{told}, {ratio.mean:.2f} times as long (one round, no interval)"
        return f"{told}, {ratio.mean:.2f} times as long ({ratio.low:.2f} to {ratio.high:.2f})"


@dataclass(frozen=True)
class Choice:
    """The engine that trains, and why."""

    engine: str
    reason: str
    tries: tuple[Try, ...] = ()


def settle_engine(
    request: Request,
    cluster: Cluster,
    batch_of: Callable[[int], GlobalBatch],
    make_engine: Callable[[Request], Engine],
    say: Callable[[str], None],
) -> Request:
    """Replace "auto" in a request by an engine; every rank must call it.

    Parameters
    ----------
    batch_of: a global batch by its number, in the order of training.
    make_engine: an engine with a model, an optimiser and a log of its own.
    say: told the reason.

    Raises
    ------
    RequestError: the run to resume or replay does not say which engine it used.
    ClusterError: a rank or server was lost, or a deadline passed.
    """
    config, candidates = request.config, engines_of(request)
    run_dir = Path(config.train.run_dir)
    if config.train.resume:
        return request.under(with_engine(config, _read_engine(run_dir)))
    if config.train.replay:
        choice = Choice(read_replayed_engine(config), "replayed")
    elif len(candidates) == 1:
        choice = Choice(candidates[0].name, request.graph.layout.explain("the graph"))
    elif cluster.world == 1:
        # With a single rank all engines compute the same. Take one that plans no exchanges.
        engine = next(candidate for candidate in candidates if not candidate.plans_on_host)
        choice = Choice(engine.name, "a single rank sends nothing")
    else:
        choice = _choose(request, candidates, cluster, batch_of, make_engine)
    say(f"engine auto: {choice.engine}: {choice.reason}")
    if cluster.rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_text(run_dir / ENGINE_FILE, json.dumps(asdict(choice), indent=1) + "\n")
    return request.under(with_engine(config, choice.engine))


def with_engine(config: Config, engine: str) -> Config:
    """The same configuration with ``train.engine`` replaced."""
    values = config.model_dump()
    values["train"]["engine"] = engine
    return make_config(values)


@dataclass
class _Side:
    """An engine that is tried, made when its first turn comes.

    seconds: by round, of the slowest rank. sent: by round, bytes of all ranks.
    """

    request: Request
    cluster: Cluster
    make_engine: Callable[[Request], Engine]
    seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    engine: Engine | None = None

    def take_turn(self, warm_up: GlobalBatch, batch: GlobalBatch, begun: float) -> float:
        """Time an iteration; returns how long ago ``begun`` was, on the rank that tells most.

        Raises
        ------
        RequestError: not with this model, or with these options; equally so on every rank.
        """
        if self.engine is None:
            find_engine(self.request.config).kind.check(self.request)
            self.engine = self.make_engine(self.request)
            measure_iteration(self.engine, self.cluster, warm_up)
        cost = measure_iteration(self.engine, self.cluster, batch)
        if self.request.reads.tables:
            # Tables of learned rows may be as large as memory allows, or lie in one file.
            self.close()
        spent = self.cluster.clock() - begun
        own = torch.tensor([cost.seconds, sum(cost.sent.values()), spent], dtype=torch.float64)
        everyone = self.cluster.all_gather(own, "control", "agreeing on an engine")
        self.cluster.traffic.take()
        self.seconds.append(float(everyone[:, 0].max()))
        self.sent.append(int(everyone[:, 1].sum()))
        return float(everyone[:, 2].max())

    def close(self) -> None:
        """Let go of the engine, if there is one."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None


def _choose(
    request: Request,
    candidates: Sequence[type[Engine]],
    cluster: Cluster,
    batch_of: Callable[[int], GlobalBatch],
    make_engine: Callable[[Request], Engine],
) -> Choice:
    begun, spent = cluster.clock(), 0.0
    refusal: RequestError | None = None
    with ExitStack() as stack:
        sides = {}
        for each in candidates:
            own = request.under(with_engine(request.config, each.name))
            sides[each.name] = _Side(own, cluster, make_engine)
            stack.callback(sides[each.name].close)
        left = list(sides)
        for number in range(MOST_ROUNDS):
            # Each round another engine begins: what one reads may be in memory for the next.
            first = number % len(left)
            for name in [*left[first:], *left[:first]]:
                try:
                    spent = sides[name].take_turn(batch_of(0), batch_of(number + 1), begun)
                except RequestError as error:
                    left.remove(name)
                    refusal = error
            if refusal is not None and not left:
                raise refusal
            left = fastest_first({name: sides[name].seconds for name in left})
            for name in left[1:]:
                if _is_slower(sides[name].seconds, sides[left[0]].seconds):
                    left.remove(name)
                    sides[name].close()
            if len(left) == 1 or spent > MOST_SECONDS:
                break
    return _conclude(left[0], {name: side for name, side in sides.items() if side.seconds})


def fastest_first(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Engines by the geometric mean of their rounds; all have as many."""
    return sorted(seconds, key=lambda name: fmean(math.log(each) for each in seconds[name]))


def _is_slower(own: Sequence[float], best: Sequence[float]) -> bool:
    """Whether the rounds show that an engine is slower than the best one."""
    return len(own) >= LEAST_ROUNDS and paired_ratio(own, best).is_shown


def _conclude(best: str, sides: Mapping[str, _Side]) -> Choice:
    tries = []
    for name, side in sides.items():
        fastest = sides[best].seconds[: len(side.seconds)]
        ratio = None if name == best else paired_ratio(side.seconds, fastest)
        sent = round(fmean(side.sent))
        tries.append(Try(name, median(side.seconds), sent, tuple(side.seconds), ratio))
    ranked = sorted(tries, key=lambda each: each.times_as_long.mean if each.times_as_long else 0.0)
    rounds = len(sides[best].seconds)
    times = f"{rounds} round{'s' * (rounds != 1)}"
    told = f"{times} of an iteration each: " + "; ".join(str(each) for each in ranked)
    even = [
        each.engine
        for each in ranked
        if each.times_as_long is not None and not each.times_as_long.is_shown
    ]
    if even:
        told += f". No difference is shown between {best} and {' or '.join(even)}"
    return Choice(best, told, tuple(tries))


def _read_engine(run_dir: Path) -> str:
    try:
        return str(json.loads((run_dir / ENGINE_FILE).read_text())["engine"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(
            f"train.resume: {run_dir}: expected the engine that was chosen in {ENGINE_FILE} "
            f"({type(error).__name__}: {error}); name it as train.engine"
        ) from error
