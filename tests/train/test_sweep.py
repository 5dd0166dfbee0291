"""``hopper sweep``: lists become trials in a documented order; wrong sweeps are refused."""

from __future__ import annotations

from typing import Any

import pytest

from hopper.cli.sweep import ranking_table
from hopper.config import make_config
from hopper.engines.trial_configs import trial_configs
from hopper.errors import ConfigError
from hopper.train.run_files import best_first
from hopper.train.sweep import make_sweep

DATA = {"data": {"partitioned": "parts"}}


def error_of(**sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        trial_configs(make_sweep(DATA | sections), 2)
    return str(caught.value)


def test_the_grid_is_in_order_of_keys_with_the_last_one_fastest() -> None:
    values = {
        "train": {"weight_decay": [0.0, 0.1], "learning_rate": [0.03, 0.01]},
        "model": {"dropout": 0.2, "hidden": [16, 8]},
    }
    config = make_sweep(DATA | values)
    keys = ("model.hidden", "train.learning_rate", "train.weight_decay")
    assert [tuple(trial) for trial in config.hop.trials] == [keys] * 8
    assert [tuple(trial.values()) for trial in config.hop.trials] == [
        (hidden, rate, decay) for hidden in (16, 8) for rate in (0.03, 0.01) for decay in (0.0, 0.1)
    ]
    assert (config.train.engine, config.hop.replicas) == ("hop", "independent")
    assert (config.model.hidden, config.train.learning_rate) == (16, 0.03)
    assert values["model"]["hidden"] == [16, 8], "the caller's values are unchanged"


def test_decoders_are_compared() -> None:
    config = make_sweep(DATA | {"task": {"decoder": ["dot", "mlp"], "dim": [4, 8]}})
    keys = ("task.decoder", "task.dim")
    expected = [("dot", 4), ("dot", 8), ("mlp", 4), ("mlp", 8)]
    assert config.hop.trials == [dict(zip(keys, values, strict=True)) for values in expected]
    assert trial_configs(config, 2)[2].config.task.decoder == "mlp"


def test_a_list_of_seeds_shares_the_draws_of_the_first() -> None:
    config = make_sweep(DATA | {"train": {"seed": [7, 8]}})
    assert config.hop.trials == [{"train.model_seed": 7}, {"train.model_seed": 8}]
    alone = [trial.config.train for trial in trial_configs(config, 2)]
    assert [(train.seed, train.own_seed) for train in alone] == [(7, 7), (7, 8)]


def test_a_list_of_seeds_without_sharing_has_own_draws() -> None:
    config = make_sweep(DATA | {"train": {"seed": [7, 8]}, "hop": {"share_sampling": False}})
    alone = [trial.config.train for trial in trial_configs(config, 2)]
    assert [(train.seed, train.own_seed) for train in alone] == [(7, 7), (8, 8)]


def test_lists_of_fanouts_have_own_draws_and_a_list_of_loggers_is_one_value() -> None:
    config = make_sweep(
        DATA
        | {"sampler": {"fanouts": [[5, 5, 5], [3, 2, 2]]}, "train": {"loggers": ["tensorboard"]}}
    )
    trials = [trial.config for trial in trial_configs(config, 2)]
    assert [trial.sampler.fanouts for trial in trials] == [[5, 5, 5], [3, 2, 2]]
    assert all(trial.train.loggers == ["tensorboard"] for trial in trials)
    assert not config.hop.share_sampling
    shared = {"sampler": {"fanouts": [[5, 5, 5], [3, 2, 2]]}, "hop": {"share_sampling": True}}
    assert "sampler.fanouts: all trials share their draws" in error_of(**shared)


def test_models_of_several_kinds_keep_layers_and_fanouts() -> None:
    config = make_sweep(DATA | {"model": {"name": ["gcn", "deepgcn"]}})
    for trial in trial_configs(config, 2):
        assert (trial.config.model.layers, trial.config.sampler.fanouts) == (3, [10, 10, 10])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, "neither lists nor hop.trials"),
        (
            {"model": {"hidden": [1, 2]}, "hop": {"trials": [{"model.hidden": 3}]}},
            "both lists and hop.trials",
        ),
        ({"model": {"layers": [2, 3]}}, "model.layers: trials cannot differ in it"),
        ({"task": {"num_negatives": [1, 2]}}, "task.num_negatives: trials cannot differ in it"),
        ({"train": {"batch_size": [2, 3]}}, "train.batch_size: trials cannot differ in it"),
        ({"model": {"hidden": []}}, "model.hidden: expected distinct values, got []"),
        ({"model": {"hidden": [4, 4]}}, "model.hidden: expected distinct values, got [4, 4]"),
        ({"train": {"seed": [1, 2], "model_seed": [1, 2]}}, "train.seed: with train.model_seed"),
        ({"model": {"hidden": [4, "x"]}}, "hop.trials[1]: model.hidden: "),
        ({"model": {"dropout": [0.5, 1.5]}}, "hop.trials[1]: model.dropout: "),
        (
            {"model": {"hidden": [1, 2]}, "train": {"engine": "zero_hop"}},
            'needs train.engine = "hop"',
        ),
        ({"model": {"hidden": [1, 2]}, "hop": {"merge": 1}}, "hop.merge: 1 time steps cannot"),
        ({"model": {"hidden": [1, 2]}, "hop": {"migrate": "gradients"}}, "hop.migrate: "),
        (
            {"model": {"hidden": [1, 2]}, "train": {"record_gradients": [3]}},
            "train.record_gradients: expected no value",
        ),
        ({"hop": {"trials": [{"train.epochs": 3}]}}, "train.epochs: trials cannot differ in it"),
        ({"hop": {"trials": [{"train.seed": 3}]}}, "use train.model_seed"),
        ({"hop": 3, "model": {"hidden": [1, 2]}}, "hop: "),
    ],
)
def test_wrong_sweeps_are_refused_with_the_key(sections: dict[str, Any], message: str) -> None:
    assert message in error_of(**sections)


def test_trials_need_independent_replicas() -> None:
    with pytest.raises(ConfigError, match=r"hop\.trials: they need replicas"):
        make_config(DATA | {"hop": {"trials": [{"model.hidden": 3}]}})


def test_the_best_comes_first() -> None:
    scores = {0: 0.5, 1: None, 2: 0.7, 3: float("nan"), 4: 0.5}
    assert best_first(scores, higher_is_better=True) == [2, 0, 4, 1, 3]
    assert best_first(scores, higher_is_better=False) == [0, 4, 2, 1, 3]


def test_the_table_is_ranked() -> None:
    trials = [
        {
            "trial": index,
            "overrides": {"model.hidden": 4 + index},
            "parameters": 10,
            "scores": {"val": {"accuracy": val}, "test": {}},
            "best_epoch": 1,
        }
        for index, val in enumerate((0.25, 0.75))
    ]
    table = ranking_table({"metric": "accuracy", "ranking": [1, 0], "trials": trials})
    columns = {str(column.header): list(column.cells) for column in table.columns}
    assert columns["trial"] == ["1", "0"]
    assert columns["hidden"] == ["5", "4"]
    assert columns["val accuracy"] == ["0.7500", "0.2500"]
    assert columns["test accuracy"] == ["-", "-"]
