"""``train.engine = "auto"``: exact engines take turns on a few batches, and the fastest trains.

One iteration says little on a machine with other work. So rounds are repeated until the fastest
engine is shown to be faster than every other one, or until a limit. Each engine gets its own model
and optimiser for this, and nothing of it is kept. The measurements and the choice are written to
``engine.json`` in the run's folder. A resumed run reads the choice from there. A replayed run reads
it from the run that it replays.
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
from hopper.config import Config, change_config
from hopper.engines import Engine, Request, engines_of, find_engine
from hopper.errors import RequestError
from hopper.micrograph.route import GlobalBatch
from hopper.paired_ratio import Ratio, paired_ratio
from hopper.train.iteration_cost import measure_iteration
from hopper.train.replay import read_replayed_engine
from hopper.whole_files import write_text

ENGINE_FILE: Final = "engine.json"
LEAST_ROUNDS: Final = 3
"""No engine is called slower before this number of rounds. Two may agree by chance."""
MOST_ROUNDS: Final = 12
MOST_SECONDS: Final = 60.0
"""No round begins after this time."""


@dataclass(frozen=True)
class Try:
    """The timed iterations of an engine, one for each round.

    Attributes
    ----------
    seconds: the median over rounds.
    bytes: what all ranks sent between servers in an iteration, for all causes; mean over rounds.
    iteration_seconds: by round, the seconds of the slowest rank.
    times_as_long: the ratio of its seconds to those of the chosen engine, over the rounds of this
        engine. None for the chosen engine.
    """

    engine: str
    seconds: float
    bytes: int
    iteration_seconds: tuple[float, ...] = ()
    times_as_long: Ratio | None = None

    def __str__(self) -> str:
        text = f"{self.engine} {self.seconds:.3g} s, {self.bytes / 1e6:.4g} MB"
        ratio = self.times_as_long
        if ratio is None:
            return text
        if ratio.low is None or ratio.high is None or ratio.rounds < LEAST_ROUNDS:
            # The interval of two rounds tells nothing: it may reach from 0 to 2,000.
            rounds = "one round" if ratio.rounds == 1 else f"{ratio.rounds} rounds"
            return f"{text}, {ratio.mean:.2f} times as long ({rounds}, no interval)"
        return f"{text}, {ratio.mean:.2f} times as long ({ratio.low:.2f} to {ratio.high:.2f})"


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
    """Replace "auto" in a request by an engine. Every rank must call this function.

    Parameters
    ----------
    batch_of: returns a global batch by its number, in the order of training.
    make_engine: makes an engine with its own model, optimiser and log.
    say: prints the choice and the reason.

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
        names = ", ".join(candidate.name for candidate in candidates)
        say(
            f"engine auto: trying {names}: up to {MOST_ROUNDS} rounds of an iteration each, and no "
            f"new one after {MOST_SECONDS:.0f} s"
        )
        choice = _choose(request, candidates, cluster, batch_of, make_engine, say)
    say(f"engine auto: {choice.engine}: {choice.reason}")
    if cluster.rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_text(run_dir / ENGINE_FILE, json.dumps(asdict(choice), indent=1) + "\n")
    return request.under(with_engine(config, choice.engine))


def with_engine(config: Config, engine: str) -> Config:
    """Return the same configuration with another ``train.engine``."""
    return change_config(config, train={"engine": engine})


@dataclass
class _Side:
    """An engine that is tried. It is made at its first turn.

    Attributes
    ----------
    seconds: by round, the seconds of the slowest rank.
    sent: by round, the bytes that all ranks sent.
    """

    request: Request
    cluster: Cluster
    make_engine: Callable[[Request], Engine]
    seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    engine: Engine | None = None

    def take_turn(self, warm_up: GlobalBatch, batch: GlobalBatch, begun: float) -> float:
        """Time an iteration, and return the seconds since ``begun``, the maximum over ranks.

        Raises
        ------
        RequestError: the engine does not allow this model or these options. All ranks raise it.
        """
        if self.engine is None:
            find_engine(self.request.config).kind.check(self.request)
            self.engine = self.make_engine(self.request)
            measure_iteration(self.engine, self.cluster, warm_up)
        cost = measure_iteration(self.engine, self.cluster, batch)
        if self.request.reads.tables:
            # Learnable tables may fill the memory, or lie in one file, so only one engine has them.
            self.close()
        spent = self.cluster.clock() - begun
        costs = torch.tensor([cost.seconds, sum(cost.sent.values()), spent], dtype=torch.float64)
        everyone = self.cluster.all_gather(costs, "control", "agreeing on an engine")
        self.cluster.traffic.take()
        self.seconds.append(float(everyone[:, 0].max()))
        self.sent.append(int(everyone[:, 1].sum()))
        return float(everyone[:, 2].max())

    def close(self) -> None:
        """Close the engine, if there is one."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None


def _choose(
    request: Request,
    candidates: Sequence[type[Engine]],
    cluster: Cluster,
    batch_of: Callable[[int], GlobalBatch],
    make_engine: Callable[[Request], Engine],
    say: Callable[[str], None],
) -> Choice:
    begun, spent = cluster.clock(), 0.0
    refusal: RequestError | None = None
    with ExitStack() as stack:
        sides = {}
        for candidate in candidates:
            candidate_request = request.under(with_engine(request.config, candidate.name))
            sides[candidate.name] = _Side(candidate_request, cluster, make_engine)
            stack.callback(sides[candidate.name].close)
        remaining = list(sides)
        for number in range(MOST_ROUNDS):
            # Another engine begins each round, because later ones may find rows in memory.
            first_turn = number % len(remaining)
            for name in [*remaining[first_turn:], *remaining[:first_turn]]:
                try:
                    spent = sides[name].take_turn(batch_of(0), batch_of(number + 1), begun)
                except RequestError as error:
                    remaining.remove(name)
                    refusal = error
            if refusal is not None and not remaining:
                raise refusal
            remaining = sort_by_speed({name: sides[name].seconds for name in remaining})
            for name in remaining[1:]:
                if _is_slower(sides[name].seconds, sides[remaining[0]].seconds):
                    remaining.remove(name)
                    sides[name].close()
                    say(f"engine auto: {name} is slower than {remaining[0]}")
            if len(remaining) == 1 or spent > MOST_SECONDS:
                break
    return _conclude(remaining[0], {name: side for name, side in sides.items() if side.seconds})


def sort_by_speed(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Sort engines by the geometric mean of their rounds, fastest first.

    Parameters
    ----------
    seconds: by engine, the seconds of its rounds. All engines have equally many.
    """
    return sorted(seconds, key=lambda name: fmean(math.log(value) for value in seconds[name]))


def _is_slower(seconds: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether the rounds show that an engine is slower than the best one."""
    return len(seconds) >= LEAST_ROUNDS and paired_ratio(seconds, best).is_shown


def _conclude(best: str, sides: Mapping[str, _Side]) -> Choice:
    tries = []
    for name, side in sides.items():
        fastest = sides[best].seconds[: len(side.seconds)]
        ratio = None if name == best else paired_ratio(side.seconds, fastest)
        sent_bytes = round(fmean(side.sent))
        tries.append(Try(name, median(side.seconds), sent_bytes, tuple(side.seconds), ratio))
    ranked = sorted(
        tries, key=lambda attempt: attempt.times_as_long.mean if attempt.times_as_long else 0.0
    )
    rounds = len(sides[best].seconds)
    times = f"{rounds} round{'s' * (rounds != 1)}"
    reason = f"{times} of an iteration each: " + "; ".join(str(attempt) for attempt in ranked)
    even = [
        attempt.engine
        for attempt in ranked
        if attempt.times_as_long is not None and not attempt.times_as_long.is_shown
    ]
    if even:
        reason += f". No difference is shown between {best} and {' or '.join(even)}"
    return Choice(best, reason, tuple(tries))


def _read_engine(run_dir: Path) -> str:
    try:
        return str(json.loads((run_dir / ENGINE_FILE).read_text())["engine"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(
            f"train.resume: {run_dir}: expected the engine that was chosen in {ENGINE_FILE} "
            f"({type(error).__name__}: {error}); name it as train.engine"
        ) from error
