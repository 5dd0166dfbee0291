"""The configurations of the models that ``hop.replicas = "independent"`` trains: the run's, with
some values replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from hopper.config import Config, make_config
from hopper.engines.data_parallel import ZeroHop
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
_SHARED: Final = {
    "train.seed": "it keys the draws that all trials share; use train.model_seed (initialisation "
    "and dropout), or hop.share_sampling = false",
    "sampler.fanouts": "all trials share their draws; trials can differ in it with "
    "hop.share_sampling = false",
}
"""Why trials cannot differ in some of these keys, if they share their draws."""


class TrialConfig(NamedTuple):
    """The values that a trial replaces, by "section.key", and the configuration that trains it
    alone, on the same number of ranks."""

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

    Without ``hop.trials`` there is one for each rank, and they differ only in their seed.
    """
    for key in ("record_gradients", "replay"):
        if getattr(config.train, key):
            raise ConfigError(
                f'train.{key}: expected no value with hop.replicas = "independent"; train one '
                "trial alone, with the configuration in its folder"
            )
    key, first = "train.seed", config.train.seed
    if config.hop.share_sampling:
        key, first = "train.model_seed", config.train.own_seed
    trials = config.hop.trials or [{key: first + index} for index in range(ranks)]
    return [
        TrialConfig(overrides, _make_config(config, f"hop.trials[{index}]", overrides))
        for index, overrides in enumerate(trials)
    ]


def _make_config(config: Config, where: str, overrides: Mapping[str, Value]) -> Config:
    """Make the configuration that trains a trial alone."""
    values = config.model_dump()
    for name, value in overrides.items():
        reason = _SHARED.get(name, "") if config.hop.share_sampling else ""
        if name not in TRIAL_KEYS:
            reason = f"trials cannot differ in it; expected one of {', '.join(TRIAL_KEYS)}"
        if reason:
            raise ConfigError(f"{where}: {name}: {reason}")
        section, _, key = name.partition(".")
        values[section][key] = value
    values["hop"] |= {"replicas": "synchronous", "trials": [], "share_sampling": True}
    # Every exact engine trains the same model.
    values["train"] |= {"engine": ZeroHop.spec.name, "run_dir": "", "resume": False}
    # Servers that were started for the run end with it.
    values["cluster"]["servers"] = []
    trial = make_config(values, where=where)
    if trial.model.typed != config.model.typed:
        raise ConfigError(
            f"{where}: model.name: {trial.model.name!r} and {config.model.name!r} read different "
            "rows: expected models of typed graphs only, or none"
        )
    return trial
