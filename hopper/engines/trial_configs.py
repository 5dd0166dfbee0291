"""Which models ``hop.replicas = "independent"`` trains: each an ordinary configuration.

A trial is the run's configuration with some keys replaced, and nothing else: `hopper train` on the
trial's configuration trains the same model alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hopper.config import Config, make_config
from hopper.engines.zero_hop import ZeroHop
from hopper.errors import ConfigError

Value = str | int | float

TRIAL_KEYS: Final = (
    "model.name",
    "model.hidden",
    "model.heads",
    "model.dropout",
    "task.decoder",
    "task.dim",
    "train.learning_rate",
    "train.weight_decay",
    "train.optimizer",
    "train.schedule",
    "train.clip_norm",
    "train.model_seed",
    "train.seed",
)
"""the keys that trials may differ in"""
ALONE: Final = ZeroHop.name
"""the engine that a trial's own configuration names; every exact engine trains the same"""


@dataclass(frozen=True)
class TrialConfig:
    """One trial.

    Attributes
    ----------
    overrides: what it replaces, by "section.key".
    config: the configuration that trains it alone, on the same number of ranks.
    """

    overrides: Mapping[str, Value]
    config: Config


def trial_name(number: int) -> str:
    """What a trial is called, and its folder in that of the run."""
    return f"trial-{number}"


def is_trials(config: Config) -> bool:
    """Whether a configuration trains several models at once."""
    return config.hop.replicas == "independent"


def all_configs(config: Config, ranks: int) -> list[Config]:
    """What a run trains: the configuration itself, or those of its trials.

    Raises
    ------
    ConfigError: as :func:`trial_configs`.
    """
    if is_trials(config):
        return [each.config for each in trial_configs(config, ranks)]
    return [config]


def trial_configs(config: Config, ranks: int) -> list[TrialConfig]:
    """The trials of a run, in order.

    Parameters
    ----------
    ranks: number of ranks N; without ``hop.trials`` also the number of trials.

    Raises
    ------
    ConfigError: a key cannot differ between trials, or has a bad value.
    """
    overrides = config.hop.trials or _seeds(config, ranks)
    _refuse(config)
    return [TrialConfig(each, _alone(config, index, each)) for index, each in enumerate(overrides)]


def _seeds(config: Config, ranks: int) -> list[dict[str, Value]]:
    """Trials that differ in their seed alone."""
    train = config.train
    if config.hop.share_sampling:
        return [{"train.model_seed": train.own_seed + index} for index in range(ranks)]
    return [{"train.seed": train.seed + index} for index in range(ranks)]


def _refuse(config: Config) -> None:
    for key in ("record_gradients", "replay"):
        if getattr(config.train, key):
            raise ConfigError(
                f'train.{key}: not with hop.replicas = "independent"; train one trial alone, by '
                "the configuration in its folder"
            )


def _alone(config: Config, index: int, overrides: Mapping[str, Value]) -> Config:
    values = config.model_dump()
    where = f"hop.trials[{index}]"
    for name, value in overrides.items():
        if name not in TRIAL_KEYS:
            raise ConfigError(
                f"{where}: {name}: trials cannot differ in it; they can in {', '.join(TRIAL_KEYS)}"
            )
        if name == "train.seed" and config.hop.share_sampling:
            raise ConfigError(
                f"{where}: train.seed: it keys the draws that all trials share; use "
                "train.model_seed (initialisation and dropout), or hop.share_sampling = false"
            )
        section, _, key = name.partition(".")
        values[section][key] = value
    values["hop"] |= {"replicas": "synchronous", "trials": [], "share_sampling": True}
    values["train"] |= {"engine": ALONE, "run_dir": "", "resume": False}
    # Servers that were started for the run end with it.
    values["cluster"]["servers"] = []
    found = make_config(values, where=where)
    if found.model.typed != config.model.typed:
        raise ConfigError(
            f"{where}: model.name: {found.model.name!r} and {config.model.name!r} read different "
            "rows: expected models of typed graphs only, or none"
        )
    return found
