"""The configurations of the models that ``hop.replicas = "independent"`` trains.

A trial is the run's configuration with some values replaced. ``hopper train`` on the trial's
configuration trains the same model alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hopper.config import Config, make_config
from hopper.engines.zero_hop import ZeroHop
from hopper.errors import ConfigError

Value = str | int | float | list[int]

TRIAL_KEYS: Final = (
    "model.name",
    "model.hidden",
    "model.heads",
    "model.dropout",
    "task.decoder",
    "task.dim",
    "sampler.fanouts",
    "train.learning_rate",
    "train.weight_decay",
    "train.optimizer",
    "train.schedule",
    "train.clip_norm",
    "train.model_seed",
    "train.seed",
)
"""The keys in which trials may differ."""
ALONE: Final = ZeroHop.spec.name
"""The engine in a trial's own configuration; every exact engine trains the same model."""


@dataclass(frozen=True)
class TrialConfig:
    """One trial.

    Attributes
    ----------
    overrides: the values that the trial replaces, by "section.key".
    config: the configuration that trains the trial alone, on the same number of ranks.
    """

    overrides: Mapping[str, Value]
    config: Config


def trial_name(number: int) -> str:
    """Return the name of a trial, which is also the name of its folder in the run's."""
    return f"trial-{number}"


def is_trials(config: Config) -> bool:
    """Return whether a configuration trains several models at once."""
    return config.hop.replicas == "independent"


def all_configs(config: Config, ranks: int) -> list[Config]:
    """Return the configurations that a run trains: its own, or those of its trials."""
    if is_trials(config):
        return [trial.config for trial in trial_configs(config, ranks)]
    return [config]


def trial_configs(config: Config, ranks: int) -> list[TrialConfig]:
    """Return the trials of a run, in order.

    Parameters
    ----------
    ranks: the number of ranks, which is also the number of trials without ``hop.trials``.
    """
    trials = config.hop.trials or _seed_overrides(config, ranks)
    _check_keys(config)
    return [
        TrialConfig(overrides, _make_config(config, index, overrides))
        for index, overrides in enumerate(trials)
    ]


def _seed_overrides(config: Config, ranks: int) -> list[dict[str, Value]]:
    """Return overrides for trials that differ only in their seed."""
    train = config.train
    if config.hop.share_sampling:
        return [{"train.model_seed": train.own_seed + index} for index in range(ranks)]
    return [{"train.seed": train.seed + index} for index in range(ranks)]


def _check_keys(config: Config) -> None:
    """Refuse settings that a run of several trials cannot have."""
    for key in ("record_gradients", "replay"):
        if getattr(config.train, key):
            raise ConfigError(
                f'train.{key}: expected no value with hop.replicas = "independent"; train one '
                "trial alone, with the configuration in its folder"
            )


def _make_config(config: Config, index: int, overrides: Mapping[str, Value]) -> Config:
    """Make the configuration that trains a trial alone."""
    values = config.model_dump()
    where = f"hop.trials[{index}]"
    for name, value in overrides.items():
        if name not in TRIAL_KEYS:
            raise ConfigError(
                f"{where}: {name}: trials cannot differ in it; expected one of "
                f"{', '.join(TRIAL_KEYS)}"
            )
        if name == "train.seed" and config.hop.share_sampling:
            raise ConfigError(
                f"{where}: train.seed: it keys the draws that all trials share; use "
                "train.model_seed (initialisation and dropout), or hop.share_sampling = false"
            )
        if name == "sampler.fanouts" and config.hop.share_sampling:
            raise ConfigError(
                f"{where}: sampler.fanouts: all trials share their draws; trials can differ in it "
                "with hop.share_sampling = false"
            )
        section, _, key = name.partition(".")
        values[section][key] = value
    values["hop"] |= {"replicas": "synchronous", "trials": [], "share_sampling": True}
    values["train"] |= {"engine": ALONE, "run_dir": "", "resume": False}
    # Servers that were started for the run end with it.
    values["cluster"]["servers"] = []
    trial = make_config(values, where=where)
    if trial.model.typed != config.model.typed:
        raise ConfigError(
            f"{where}: model.name: {trial.model.name!r} and {config.model.name!r} read different "
            "rows: expected models of typed graphs only, or none"
        )
    return trial
