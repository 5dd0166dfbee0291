"""``train.engine = "auto"``: all exact engines try the first global batches, the fastest trains.

Each try has a model and an optimiser of its own, which are discarded. The measurements and the
choice are written to ``engine.json`` in the run's folder. A resumed run reads its engine from this
file, and a replayed run takes the engine of the run that it replays.
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
from hopper.train.replay import read_replayed_engine
from hopper.whole_files import write_text

ENGINE_FILE: Final = "engine.json"


@dataclass(frozen=True)
class Try:
    """One engine's iteration.

    Attributes
    ----------
    engine: the engine's name.
    seconds: time of the slowest rank.
    bytes: bytes that all ranks sent between servers, for all causes.
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
    """Replace "auto" in a request by an engine; every rank must call it.

    Parameters
    ----------
    batches: the first batches of epoch 0, at least one. The second is timed, if there is one.
    make_engine: makes an engine with a model, an optimiser and a log of its own.
    say: prints the choice and its reason.

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
        choice = _choose(request, candidates, cluster, batches, make_engine)
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


def _choose(
    request: Request,
    candidates: Sequence[type[Engine]],
    cluster: Cluster,
    batches: Sequence[GlobalBatch],
    make_engine: Callable[[Request], Engine],
) -> Choice:
    """Let all candidates try an iteration, and choose the fastest."""
    tries: list[Try] = []
    for candidate in candidates:
        tries += _try(candidate.name, request, cluster, batches, make_engine)
    fastest_first = sorted(tries, key=lambda attempt: attempt.seconds)
    reason = f"an iteration each: {'; '.join(map(str, fastest_first))}"
    return Choice(fastest_first[0].engine, reason, tuple(tries))


def _try(
    name: str,
    request: Request,
    cluster: Cluster,
    batches: Sequence[GlobalBatch],
    make_engine: Callable[[Request], Engine],
) -> list[Try]:
    """Let one engine try an iteration, and free its memory; empty if it refuses the request."""
    attempt = request.under(with_engine(request.config, name))
    try:
        # The first iteration warms up.
        *_, cost = try_engine(attempt, cluster, batches[:2], make_engine)
    except RequestError:
        # The engine cannot train this model or these options. All ranks agree on that.
        return []
    return [_agree(cluster, name, cost.seconds, sum(cost.sent.values()))]


def _agree(cluster: Cluster, name: str, seconds: float, sent: int) -> Try:
    """Combine the measurements of all ranks."""
    measured = torch.tensor([seconds, float(sent)], dtype=torch.float64)
    by_rank = cluster.all_gather(measured, "control", "agreeing on an engine")
    cluster.traffic.take()
    return Try(name, float(by_rank[:, 0].max()), int(by_rank[:, 1].sum()))


def _read_engine(run_dir: Path) -> str:
    try:
        return str(json.loads((run_dir / ENGINE_FILE).read_text())["engine"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(
            f"train.resume: {run_dir}: expected the engine that was chosen in {ENGINE_FILE} "
            f"({type(error).__name__}: {error}); name it as train.engine"
        ) from error
