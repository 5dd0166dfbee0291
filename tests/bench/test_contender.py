"""Contenders of an A/B are engines, each with options of its own."""

import pytest

from hopper.bench.contender import Contender, parse_contenders
from hopper.bench.statistics import engines_of, figures, speed_up
from hopper.config import change_config, make_config
from hopper.errors import ConfigError, RequestError

from .conftest import make_run  # isort: skip


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
    full = Contender.parse("zero_hop:sampler.kind=full").configure(
        change_config(given, train={"seed": 5})
    )
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
