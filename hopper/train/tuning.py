"""What clocks decide, chosen once before a run: its engine and the engine's options.

Settings take turns on a few batches, each with its own model and optimiser, in the pipeline that
the run will use. One turn says little on a machine with other work. So rounds are repeated until
one setting is shown to be the fastest, or until a limit. What was measured and chosen is written to
``tuning.json`` in the run's folder. A resumed run reads it there, and a replayed run in the folder
of the run that it replays, so both train with the same settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import torch

from hopper.cluster.cluster import Cluster
from hopper.config import Config, change_config
from hopper.engines import AUTO, Engine, Request, TrainStep, engines_of, find_engine
from hopper.engines.assemble import make_schedule
from hopper.engines.engine import value_of
from hopper.engines.trial_configs import is_trials
from hopper.errors import ConfigError, RequestError
from hopper.files.whole_files import write_text
from hopper.micrograph.route import GlobalBatch
from hopper.timing.paired_ratio import Ratio, paired_ratio
from hopper.train.engine_pipeline import EnginePipeline, engine_stages

TUNING_FILE: Final = "tuning.json"
LEAST_ROUNDS: Final = 3
"""No setting is called slower before this number of rounds. Two may agree by chance."""
MOST_ROUNDS: Final = 12
MOST_SECONDS: Final = 60.0
"""No round of a race begins after this time."""
MARGIN: Final = 1.02
"""How many times as long the first of two options must take for the second to go on racing."""
_TIMED: Final = 2
"""timed iterations of a turn, after one that fills the pipeline"""

MakeEngine = Callable[[Request], TrainStep[Any, Any]]
"""Makes an engine with a model, an optimiser and a log of its own; raises RequestError if it cannot
train the request."""


@dataclass(frozen=True)
class Try:
    """The timed turns of a setting, the engine's name or the options in words: median seconds and
    mean bytes of an iteration, of all ranks; seconds by round; and the ratio of these to those of
    the chosen setting, None for itself."""

    setting: str
    seconds: float
    bytes: int
    round_seconds: tuple[float, ...] = ()
    times_as_long: Ratio | None = None

    def __str__(self) -> str:
        text = f"{self.setting} {self.seconds:.3g} s, {self.bytes / 1e6:.4g} MB"
        ratio = self.times_as_long
        if ratio is None:
            return text
        if ratio.low is None or ratio.high is None or ratio.rounds < LEAST_ROUNDS:
            # The interval of two rounds tells nothing: it may reach from 0 to 2,000.
            rounds = "one round" if ratio.rounds == 1 else f"{ratio.rounds} rounds"
            return f"{text}, takes {ratio.mean:.2f}x the time ({rounds}, no interval)"
        return f"{text}, takes {ratio.mean:.2f}x the time ({ratio.low:.2f} to {ratio.high:.2f})"


@dataclass
class Tuning:
    """What was chosen: the engine, its options by "section.key", a sentence for each choice, and
    the settings of all races, in order."""

    engine: str
    options: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)

    def apply(self, request: Request) -> Request:
        """Return a request with the engine and the options; raise RequestError or ConfigError if
        they do not fit."""
        sections: dict[str, dict[str, Any]] = {"train": {"engine": self.engine}}
        for name, value in self.options.items():
            section, key = name.split(".")
            sections.setdefault(section, {})[key] = value
        return request.under(change_config(request.config, **sections))


class Candidate:
    """A setting in a race, whose engine trains as the run will. It is made at the first turn.
    ``seconds`` and ``sent`` are those of an iteration by round, of the slowest rank and of all
    ranks."""

    def __init__(self, request: Request, cluster: Cluster, make_engine: MakeEngine) -> None:
        self.seconds: list[float] = []
        self.sent: list[int] = []
        self._request, self._cluster, self._make_engine = request, cluster, make_engine
        self._engine: TrainStep[Any, Any] | None = None

    def take_turn(self, number: int, begun: float) -> float:
        """Take a turn, and return the seconds since ``begun``, the maximum over ranks; every rank
        must call it."""
        seconds, sent = self.train(number)
        if self._request.reads.tables:
            # Learnable tables may fill the memory, or lie in one file, so only one engine has them.
            self.close()
        own = torch.tensor([seconds, sent, self._cluster.clock() - begun], dtype=torch.float64)
        everyone = self._cluster.all_gather(own, "control", "agreeing on a setting")
        self._cluster.traffic.take()
        self.seconds.append(float(everyone[:, 0].max()))
        self.sent.append(int(everyone[:, 1].sum()))
        return float(everyone[:, 2].max())

    def train(self, round_number: int) -> tuple[float, int]:
        """Train an iteration that fills the pipeline, and time the next ones; return this rank's
        seconds and sent bytes of one. All settings train the same batches in a round."""
        if self._engine is None:
            self._engine = self._make_engine(self._request)
            self._schedule = make_schedule(self._request)
        cluster, engine, count = self._cluster, self._engine, 1 + _TIMED
        cluster.arrive(f"trying {engine.name}")
        cluster.traffic.take()
        # To the pipeline each turn is an epoch.
        stages, start = engine_stages(engine, self._batch), (round_number, 0)
        with EnginePipeline(engine, stages, count, round_number + 1, start) as pipeline:
            pipeline.train_next()
            begun = cluster.clock()
            for _ in range(_TIMED):
                pipeline.train_next()
            seconds = cluster.clock() - begun
        return seconds / _TIMED, sum(cluster.traffic.take().values()) // count

    def close(self) -> None:
        """Close the engine's connections, if there is one."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _batch(self, turn: int, number: int) -> GlobalBatch:
        """Return a batch of the run. Where it has fewer than are tried, they come again."""
        iterations, epochs = self._schedule.iterations, self._request.config.train.epochs
        number = (turn * (1 + _TIMED) + number) % (epochs * iterations)
        return self._schedule.batch(*divmod(number, iterations))


def is_tuned(config: Config) -> bool:
    """Return whether a configuration leaves anything to be chosen before the run."""
    return config.train.engine == AUTO or _is_adaptive(config, find_engine(config).kind)


def _is_adaptive(config: Config, engine: type[Engine[Any, Any]]) -> bool:
    """Return whether the engine's raised option is to be found out. Trials have none."""
    option = engine.spec.raised_option
    return bool(option) and not is_trials(config) and value_of(config, option) == "adaptive"


def read_tuning(run_dir: Path, key: str) -> Tuning:
    """Read what a run chose; an error begins with ``key``."""
    try:
        content = json.loads((run_dir / TUNING_FILE).read_text())
        return Tuning(str(content["engine"]), dict(content["options"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"{key}: {run_dir}: expected what was chosen in {TUNING_FILE} "
            f"({type(error).__name__}: {error}); name train.engine and hop.merge"
        ) from error


def check_replay(request: Request, check: Callable[[Request], None]) -> None:
    """Refuse to replay a run that has chosen nothing, or what does not fit this configuration."""
    config = request.config
    if not config.train.replay:
        return
    if not is_tuned(config):
        raise ConfigError(
            "train.replay: this configuration leaves nothing to be chosen; expected "
            'train.engine = "auto", or hop.merge = "adaptive"'
        )
    check(read_tuning(Path(config.train.replay), "train.replay").apply(request))


def settle(
    request: Request, cluster: Cluster, make_engine: MakeEngine, say: Callable[[str], None]
) -> Request:
    """Choose what a configuration leaves open, and say why. Every rank must call this function."""
    config = request.config
    if not is_tuned(config):
        return request
    run_dir = Path(config.train.run_dir)
    if config.train.resume:
        return read_tuning(run_dir, "train.resume").apply(request)
    if config.train.replay:
        tuning = read_tuning(Path(config.train.replay), "train.replay")
        tuning.reasons = ["replayed"]
    else:

        def race_of(options: Mapping[str, Tuning], *, first_stays: bool = False) -> list[Try]:
            candidates = {
                name: Candidate(tried.apply(request), cluster, make_engine)
                for name, tried in options.items()
            }
            return race(candidates, cluster, say, first_stays=first_stays)

        tuning = _choose_engine(request, race_of, say)
        if request.ranks > 1:
            _choose_options(tuning, request, race_of)
    for reason in tuning.reasons:
        say(f"tuning: {tuning.engine}: {reason}")
    if cluster.rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_text(run_dir / TUNING_FILE, json.dumps(asdict(tuning), indent=1) + "\n")
    return tuning.apply(request)


def _choose_engine(
    request: Request, race_of: Callable[..., list[Try]], say: Callable[[str], None]
) -> Tuning:
    engines = engines_of(request)
    names = [engine.spec.name for engine in engines]
    if request.config.train.engine != AUTO:
        return Tuning(request.config.train.engine)
    if len(names) == 1:
        return Tuning(names[0], reasons=[request.graph.layout.explain("the graph")])
    if request.ranks == 1:
        # With a single rank all engines compute the same. Take one that plans no exchanges.
        engine = next(engine for engine in engines if not engine.spec.plans_on_host)
        return Tuning(engine.spec.name, reasons=["a single rank sends nothing"])
    say(
        f"tuning: trying {', '.join(names)}: up to {MOST_ROUNDS} rounds of {_TIMED} iterations "
        f"each, and no new one after {MOST_SECONDS:.0f} s"
    )
    # A cache is tried with the engine that wins, since filling one takes long.
    tries = race_of({name: Tuning(name, {"cache.policy": "none"}) for name in names})
    return Tuning(tries[0].setting, {}, [_explain(tries)], tries)


def _choose_options(tuning: Tuning, request: Request, race_of: Callable[..., list[Try]]) -> None:
    """Race the options of the chosen engine against each other, one after the other."""

    def choose(name: str, value: Any, other: Any) -> bool:
        """Choose between two values of an option; return whether the other is the better one."""
        values = {f"{name} = {each}": each for each in (value, other)}
        settings = {
            text: Tuning(tuning.engine, {**tuning.options, name: each})
            for text, each in values.items()
        }
        tries = race_of(settings, first_stays=True)
        tuning.reasons.append(_explain(tries))
        tuning.tries += tries
        tuning.options[name] = values[tries[0].setting]
        return tries[0].setting != next(iter(values))

    config, is_auto = request.config, request.config.train.engine == AUTO
    engine = find_engine(change_config(config, train={"engine": tuning.engine})).kind
    option = engine.spec.raised_option
    if option and (_is_adaptive(config, engine) or (is_auto and value_of(config, option) == "off")):
        # HopGNN, section 5.3: one more step is merged for as long as the time falls.
        value = 0
        while value < request.ranks - 1 and choose(option, value, value + 1):
            value += 1
    if is_auto and config.pipeline.depth and not config.pipeline.lookahead:
        choose("pipeline.depth", config.pipeline.depth, 0)
    if is_auto and config.cache.policy != "none":
        choose("cache.policy", config.cache.policy, "none")


def race(
    candidates: Mapping[str, Candidate],
    cluster: Cluster,
    say: Callable[[str], None],
    *,
    first_stays: bool = False,
) -> list[Try]:
    """Let settings take turns, and return what was measured, the chosen setting first. Those whose
    engine refuses the request are left out.

    If ``first_stays``, the first setting is chosen unless another one is shown to be faster;
    otherwise the one with the lowest geometric mean is.
    """
    begun, spent = cluster.clock(), 0.0
    refusal: RequestError | None = None
    first, remaining = next(iter(candidates)), list(candidates)
    with ExitStack() as stack:
        for candidate in candidates.values():
            stack.callback(candidate.close)
        for number in range(MOST_ROUNDS):
            # Another setting begins each round, because later ones may find rows in memory.
            turn = number % len(remaining)
            for name in [*remaining[turn:], *remaining[:turn]]:
                try:
                    spent = candidates[name].take_turn(number, begun)
                except RequestError as error:
                    remaining.remove(name)
                    refusal = error
            if refusal is not None and not remaining:
                raise refusal
            remaining = sort_by_speed({name: candidates[name].seconds for name in remaining})
            for name in remaining[1:]:
                ratio = paired_ratio(candidates[name].seconds, candidates[remaining[0]].seconds)
                if number + 1 >= LEAST_ROUNDS and ratio.is_shown:
                    remaining.remove(name)
                    candidates[name].close()
                    say(f"tuning: {name} is slower than {remaining[0]}")
            if len(remaining) == 1 or spent > MOST_SECONDS:
                break
            if first_stays and number + 1 >= LEAST_ROUNDS and not _gains(candidates):
                break
    best = first if first_stays and first in remaining else remaining[0]
    tries = []
    for name, candidate in candidates.items():
        if seconds := candidate.seconds:
            fastest = candidates[best].seconds[: len(seconds)]
            compared = None if name == best else paired_ratio(seconds, fastest)
            sent = round(fmean(candidate.sent))
            tries.append(Try(name, median(seconds), sent, tuple(seconds), compared))
    return sorted(tries, key=lambda each: each.times_as_long.mean if each.times_as_long else 0.0)


def sort_by_speed(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Sort settings by the geometric mean of their rounds, of which all have equally many, fastest
    first."""
    return sorted(seconds, key=lambda name: fmean(math.log(value) for value in seconds[name]))


def _gains(candidates: Mapping[str, Candidate]) -> bool:
    """Return whether any setting may still be shown to be faster than the first by a margin."""
    first, *others = (candidate.seconds for candidate in candidates.values())
    return any(paired_ratio(first, seconds).mean >= MARGIN for seconds in others if seconds)


def _explain(tries: Sequence[Try]) -> str:
    """Say what a race has measured, in one line."""
    rounds = len(tries[0].round_seconds)
    reason = f"{rounds} round{'s' * (rounds != 1)}: " + "; ".join(map(str, tries))
    ratios = [(each.setting, each.times_as_long) for each in tries]
    even = [setting for setting, ratio in ratios if ratio is not None and not ratio.is_shown]
    if even:
        reason += f". No difference is shown between {tries[0].setting} and {' or '.join(even)}"
    return reason
