"""Turning lists in a configuration into trials of all their combinations (docs/howto/sweeps.md)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, get_origin

from hopper.config import Config, make_config, override
from hopper.config.engines import TRIALS_ENGINE
from hopper.engines.trial_configs import TRIAL_KEYS
from hopper.errors import ConfigError


def make_sweep(values: Mapping[str, Any], where: str = "configuration") -> Config:
    """Make the configuration of a grid: one trial for each combination of the listed values.

    Trials are in the order of :data:`TRIAL_KEYS`. The last key varies fastest, and the values of a
    key keep their order. If sampling is shared, a list at ``train.seed`` gives each trial its own
    ``train.model_seed``, while data order and draws come from the first seed. Errors name ``where``
    the values come from.
    """
    listed = _find_lists(values, where)
    sections = override(values, ())
    hop = sections.setdefault("hop", {})
    train = sections.setdefault("train", {})
    if not isinstance(hop, dict) or not isinstance(train, dict):
        return make_config(sections, where=where)
    if bool(listed) == bool(hop.get("trials")):
        fault = "both lists and hop.trials" if listed else "neither lists nor hop.trials"
        raise ConfigError(
            f"{where}: {fault} to make trials from; expected lists at some of "
            f"{', '.join(TRIAL_KEYS)}, or hop.trials"
        )
    hop["replicas"] = "independent"
    if train.get("engine", "auto") == "auto":
        train["engine"] = TRIALS_ENGINE
    if listed:
        for name, choices in listed.items():
            section, _, key = name.partition(".")
            sections[section][key] = choices[0]
        if "sampler.fanouts" in listed:
            # Trials that draw different numbers of neighbours cannot share them.
            hop.setdefault("share_sampling", False)
        hop["trials"] = _grid(listed, hop.get("share_sampling", True) is not False, where)
    return make_config(sections, where=where)


def _find_lists(values: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """Return the lists that make trials, in order of :data:`TRIAL_KEYS`."""
    lists = {}
    for section in ("model", "task", "sampler", "train"):
        keys = values.get(section, {})
        for key, value in keys.items() if isinstance(keys, Mapping) else ():
            name = f"{section}.{key}"
            # A list is one value where every configuration has a list; a list of them makes trials.
            is_nested = isinstance(value, list) and all(isinstance(one, list) for one in value)
            makes_trials = name in TRIAL_KEYS and is_nested and value
            if isinstance(value, list) and (makes_trials or not _is_list(section, key)):
                lists[name] = value
    for name, choices in lists.items():
        if name not in TRIAL_KEYS:
            raise ConfigError(
                f"{where}: {name}: trials cannot differ in it (they are sampled together and end "
                f"together), so no list; they can in {', '.join(TRIAL_KEYS)}"
            )
        if not choices or len({repr(choice) for choice in choices}) != len(choices):
            raise ConfigError(f"{where}: {name}: expected distinct values, got {choices}")
    return {name: lists[name] for name in TRIAL_KEYS if name in lists}


def _is_list(section: str, key: str) -> bool:
    """Return whether the value of a key is a list in every configuration."""
    keys = getattr(Config.model_fields[section].annotation, "model_fields", {})
    return key in keys and get_origin(keys[key].annotation) is list


def _grid(listed: Mapping[str, list[Any]], shared: bool, where: str) -> list[dict[str, Any]]:
    names = ["train.model_seed" if shared and n == "train.seed" else n for n in listed]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"{where}: train.seed: with train.model_seed listed too, one value is expected here: "
            "data order and draws are shared"
        )
    combinations = itertools.product(*listed.values())
    return [dict(zip(names, values, strict=True)) for values in combinations]
