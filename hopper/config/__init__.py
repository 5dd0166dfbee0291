"""The configuration: TOML, typed, validated before any work starts.

Every key can be overridden as ``--section.key value``; an unknown key is an error. The keys are in
:mod:`hopper.config.sections`.
"""

from hopper.config.loading import load_config, make_config, override, read_values
from hopper.config.sections import DEEP_MODELS, ENGINES, ENGINES_NOT_BUILT, Config, Train

__all__ = [
    "DEEP_MODELS",
    "ENGINES",
    "ENGINES_NOT_BUILT",
    "Config",
    "Train",
    "load_config",
    "make_config",
    "override",
    "read_values",
]
