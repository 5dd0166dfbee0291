"""``hopper bench`` refuses impossible requests, plans the others, and ends its runs. It compares
engines, each with options of its own."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hopper.bench.ab_plan import make_plan
from hopper.bench.contender import Contender, parse_contenders
from hopper.bench.statistics import engines_of, figures, speed_up
from hopper.bench.train_process import train_in_process
from hopper.cli import main
from hopper.config import change_config, make_config
from hopper.errors import ClusterError, ConfigError, DeadlineExceeded, RequestError
from hopper.process.signal_handlers import end_on_signals

from .conftest import make_run

BOTH = ("model_centric", "hop")


@pytest.fixture(scope="module", autouse=True)
def _starts() -> None:
    """Runs are processes of their own here, since deadlines and signals end them."""


def test_an_unknown_option_is_misuse(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "c.toml", "--engines", "hop", "--out", "o", "--frobnicate", "3"])
    assert caught.value.code == 2
    assert "--frobnicate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engines", "rounds", "limit", "error", "text"),
    [
        ((), 1, None, RequestError, "--engines"),
        (("p3",), 1, None, RequestError, "was divided by node"),
        (("dgl",), 1, None, ConfigError, "got 'dgl'"),
        (BOTH, 0, None, RequestError, "--rounds: expected at least 1, given 0"),
        (BOTH, 1, 0.0, RequestError, "--run-timeout"),
        (BOTH, 1, float("nan"), RequestError, "--run-timeout"),
        (BOTH, 1, float("inf"), RequestError, "--run-timeout"),
    ],
)
def test_impossible_requests_are_refused(
    tiny_config, tmp_path, engines, rounds, limit, error, text
):
    with pytest.raises(error, match=text):
        make_plan(tiny_config, engines, tmp_path / "out", rounds, limit)
    assert not (tmp_path / "out").exists()


def test_earlier_results_are_not_overwritten(tiny_config, tmp_path):
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(RequestError, match="not an empty folder"):
        make_plan(tiny_config, BOTH, tmp_path, 1)


def test_every_round_another_engine_begins(tiny_config, tmp_path):
    plan = make_plan(tiny_config, ("hop", "zero_hop", "model_centric"), tmp_path / "out", 3)
    orders = [[contender.label for contender in plan.order(index)] for index in range(4)]
    assert [order[0] for order in orders] == ["hop", "zero_hop", "model_centric", "hop"]
    assert all(sorted(order) == ["hop", "model_centric", "zero_hop"] for order in orders)
    assert (plan.world, plan.iterations, plan.total_runs) == (2, 3, 9)
    # 120 s to start, and 60 s for each of 2 epochs of 3 iterations and an evaluation, and the end.
    assert plan.limit == 120 + 30 * (2 * 4 + 2)


def test_first_middle_and_last_iteration_that_all_have_are_recorded(tiny_config, tmp_path):
    plan = make_plan(tiny_config, BOTH, tmp_path / "out", 1)
    assert plan.recorded_iterations == [0, 1, 2]
    # A run has six in all.
    assert replace(plan, iterations=1000).recorded_iterations == [0, 2, 5]
    assert replace(plan, iterations=1).recorded_iterations == [0]
    longer = change_config(tiny_config, train={"epochs": 9})
    assert replace(plan, config=longer, iterations=1000).recorded_iterations == [0, 3, 7]
    # With full batches an epoch has a single iteration.
    engines = ("zero_hop", "neutronstar:sampler.kind=full")
    plan = make_plan(tiny_config, engines, tmp_path / "full", 1)
    assert plan.recorded_iterations == [0, 1]


def test_a_failing_run_is_named_with_its_last_words(config_file, tmp_path):
    words, message = ["--train.engine", "nonsense"], r"hop, round 2: .*exit code 1.*got 'nonsense'"
    with pytest.raises(ClusterError, match=message) as caught:
        train_in_process("hop, round 2", config_file, tmp_path / "run", words, 60)
    assert str(tmp_path / "run") in str(caught.value)


def test_a_run_past_its_deadline_is_ended(config_file, tmp_path):
    with pytest.raises(DeadlineExceeded, match=r"hop, round 1: training .* within 0\.5 s"):
        train_in_process("hop, round 1", config_file, tmp_path / "run", [], 0.5)
    assert _commands_left(tmp_path) == []


def test_sigterm_ends_a_run_with_its_ranks_and_servers(config_file, tmp_path):
    run_dir = tmp_path / "run"
    commands: list[str] = []
    over = threading.Event()

    def interrupt_once_ranks_run() -> None:
        while not over.wait(0.05):
            if (run_dir / "spans").exists():
                commands.extend(_commands_naming(tmp_path))
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=interrupt_once_ranks_run)
    thread.start()
    words = ["--train.epochs", "1000000"]
    try:
        with end_on_signals(), pytest.raises(KeyboardInterrupt):
            train_in_process("hop, round 1", config_file, run_dir, words, 120)
    finally:
        over.set()
        thread.join()
    # The launcher, two servers and two ranks.
    assert len(commands) == 5
    assert _commands_left(tmp_path) == []


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_what_runs_by_an_exception(kind):
    # Under nohup a signal may come ignored.
    inherited = signal.signal(kind, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), end_on_signals():
            signal.raise_signal(kind)
        assert signal.getsignal(kind) == signal.SIG_DFL
    finally:
        signal.signal(kind, inherited)


def _commands_left(folder: Path) -> list[str]:
    """Return the commands that still run. What has lost its parent has five seconds to end."""
    deadline = time.monotonic() + 5
    while (left := _commands_naming(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _commands_naming(folder: Path) -> list[str]:
    processes = psutil.process_iter(["cmdline"])
    commands = [" ".join(process.info["cmdline"] or ()) for process in processes]
    return [command for command in commands if str(folder) in command]


# Engines with options of their own


def test_options_are_keys_of_the_engine_s_section_or_named_in_full(tiny_config):
    contender = Contender.parse("hop:merge=1:pregather=false:train.threads=3")
    config = contender.configure(tiny_config)
    assert (config.train.engine, config.train.threads) == ("hop", 3)
    assert (config.hop.merge, config.hop.pregather) == (1, False)
    assert contender.options(tiny_config)["merge"] == 1
    assert contender.folder == "hop-merge-1-pregather-false-train.threads-3"
    # What is not named is that of the configuration.
    assert config.model == tiny_config.model
    assert tiny_config.hop.merge == "off"


def test_defaults_follow_what_a_contender_changes(tiny_config):
    full = Contender.parse("zero_hop:sampler.kind=full").configure(tiny_config)
    assert (full.sampler.fanouts, full.pipeline.lookahead) == ([-1, -1], 1)
    given = make_config(tiny_config.given(), ["--pipeline.lookahead=0", "--sampler.fanouts=[3, 3]"])
    deeper = Contender.parse("zero_hop:model.name=deepgcn:model.layers=3")
    with pytest.raises(ConfigError, match="expected one fanout per layer"):
        deeper.configure(given)
    # A change of a change knows what was given, too.
    seeded = change_config(given, train={"seed": 5})
    full = Contender.parse("zero_hop:sampler.kind=full").configure(seeded)
    assert (full.train.seed, full.pipeline.lookahead) == (5, 0)


def test_another_division_is_named_after_the_last_part_of_its_path(tiny_config):
    contender = Contender.parse("zero_hop:partitioned=some/where/parts-b")
    assert contender.label == "zero_hop:partitioned=parts-b"
    assert contender.configure(tiny_config).data.partitioned.endswith("/some/where/parts-b")
    assert contender.configure(tiny_config).data.partitioned.startswith("/")


@pytest.mark.parametrize(
    ("texts", "error", "text"),
    [
        (["hop:merge"], RequestError, "got option 'merge'"),
        (["hop:=1"], RequestError, "got option '=1'"),
        (["hop:speed=1"], ConfigError, r"--engines: hop:speed=1: hop\.speed: unknown key"),
        (["hop:merge=-1"], ConfigError, r"hop\.merge"),
        (["hop:replicas=independent"], RequestError, "trains different models"),
        (["hop", "hop"], RequestError, "expected distinct names"),
        (["hop:partitioned=a/p", "hop:partitioned=b/p"], RequestError, "different last names"),
        (["auto"], RequestError, '"auto" is none'),
    ],
)
def test_what_cannot_be_compared_is_refused(tiny_config, texts, error, text):
    with pytest.raises(error, match=text):
        assert [contender.configure(tiny_config) for contender in parse_contenders(texts)]


def test_contenders_know_whether_they_are_exact_and_whether_they_round(tiny_config):
    texts = ("hop:merge=1", "locality", "cooperative", "cooperative:wire=bfloat16")
    contenders = [Contender.parse(text) for text in texts]
    exact = [contender.exact(tiny_config) for contender in contenders]
    assert exact == [True, False, True, False]
    rounding = [contender.rounds(tiny_config) for contender in contenders]
    assert rounding == [False, False, False, True]


def test_figures_tell_the_same_engine_with_other_options_apart():
    runs = []
    for label, seconds in (("hop:merge=off", 4.0), ("hop:merge=1", 2.0)):
        runs.append(make_run("hop", 0, [seconds]) | {"label": label})
    assert engines_of(runs) == ["hop:merge=off", "hop:merge=1"]
    assert figures(runs, "hop:merge=1").seconds == 2.0
    assert speed_up(runs, "hop:merge=1", "hop:merge=off").mean == pytest.approx(2.0)
