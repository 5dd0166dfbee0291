"""``train.engine = "auto"``: exact engines try the first global batches, the fastest one trains.

Nothing of a try is kept: each engine gets a model and an optimiser of its own. What was measured
and chosen is written to ``engine.json`` in the run's folder; a resumed run takes its word for it,
a replayed one that of the run it replays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from hopper.cluster import Cluster
from hopper.config import Config, make_config
from hopper.engines import Engine, Request, engines_of
from hopper.errors import RequestError
from hopper.micrograph.route import GlobalBatch
from hopper.train.iteration_cost import try_engine
from hopper.train.replay import replayed_engine
from hopper.whole_files import write_text

ENGINE_FILE: Final = "engine.json"


@dataclass(frozen=True)
class Try:
    """One engine's iteration.

    seconds: the slowest rank's. bytes: sent between servers, of all causes, by all ranks.
    """

    engine: str
    seconds: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.engine} {self.seconds:.3g} s, {self.bytes / 1e6:.4g} MB"


@dataclass(frozen=True)
class Choice:
    """The engine that trains, and why."""

    engine: str
    reason: str
    tries: tuple[Try, ...] = ()


def settle_engine(
    request: Request,
    cluster: Cluster,
    batches: Sequence[GlobalBatch],
    make_engine: Callable[[Request], Engine],
    say: Callable[[str], None],
) -> Request:
    """The request with an engine instead of "auto"; every rank calls it.

    Parameters
    ----------
    batches: the first ones of epoch 0, one at least; the second is timed, if there is one.
    make_engine: an engine with a model, an optimiser and a log of its own.
    say: told the reason.

    Raises
    ------
    RequestError: the run to resume or to replay does not tell its engine.
    ClusterError: a rank or server was lost, or a deadline passed.
    """
    config, candidates = request.config, engines_of(request)
    run_dir = Path(config.train.run_dir)
    if config.train.resume:
        return request.under(with_engine(config, _read_engine(run_dir)))
    if config.train.replay:
        choice = Choice(replayed_engine(config), "replayed")
    elif len(candidates) == 1:
        choice = Choice(candidates[0].name, request.graph.layout.explain("the graph"))
    elif cluster.world == 1:
        # With nobody to share with all do the same: the one that does least besides.
        alone = next(each for each in candidates if not each.plans_on_host)
        choice = Choice(alone.name, "a single rank sends nothing")
    else:
        choice = _choose(request, candidates, cluster, batches, make_engine)
    say(f"engine auto: {choice.engine}: {choice.reason}")
    if cluster.rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_text(run_dir / ENGINE_FILE, json.dumps(asdict(choice), indent=1) + "\n")
    return request.under(with_engine(config, choice.engine))


def with_engine(config: Config, engine: str) -> Config:
    """The same configuration for an engine."""
    values = config.model_dump()
    values["train"]["engine"] = engine
    return make_config(values)


def _choose(
    request: Request,
    candidates: Sequence[type[Engine]],
    cluster: Cluster,
    batches: Sequence[GlobalBatch],
    make_engine: Callable[[Request], Engine],
) -> Choice:
    tries: list[Try] = []
    for each in candidates:
        tries += _try(each.name, request, cluster, batches, make_engine)
    best = min(tries, key=lambda each: each.seconds)
    told = "; ".join(str(each) for each in sorted(tries, key=lambda each: each.seconds))
    return Choice(best.engine, f"an iteration each: {told}", tuple(tries))


def _try(
    name: str,
    request: Request,
    cluster: Cluster,
    batches: Sequence[GlobalBatch],
    make_engine: Callable[[Request], Engine],
) -> list[Try]:
    """One engine's try; none where it is refused. What it holds is let go of before the next."""
    own = request.under(with_engine(request.config, name))
    try:
        # The first iteration warms up.
        *_, cost = try_engine(own, cluster, batches[:2], make_engine)
    except RequestError:
        # Not with this model, or with these options; equally so on every rank.
        return []
    return [_agree(cluster, name, cost.seconds, sum(cost.sent.values()))]


def _agree(cluster: Cluster, name: str, seconds: float, sent: int) -> Try:
    own = torch.tensor([seconds, float(sent)], dtype=torch.float64)
    everyone = cluster.all_gather(own, "control", "agreeing on an engine")
    cluster.traffic.take()
    return Try(name, float(everyone[:, 0].max()), int(everyone[:, 1].sum()))


def _read_engine(run_dir: Path) -> str:
    try:
        return str(json.loads((run_dir / ENGINE_FILE).read_text())["engine"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(
            f"train.resume: {run_dir}: expected the engine that was chosen in {ENGINE_FILE} "
            f"({type(error).__name__}: {error}); name it as train.engine"
        ) from error
