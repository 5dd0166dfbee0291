"""The configuration: a TOML file, checked before any work starts.

``--section.key value`` overrides a key. An unknown key is an error. The keys are in
:mod:`hopper.config.sections` and :mod:`hopper.config.model`, with a class for each section. A
:class:`Config` and its sections cannot be changed. :func:`change_config` makes another one.
"""

from hopper.config.loading import (
    change_config,
    load_config,
    make_config,
    override,
    read_config,
    read_values,
)
from hopper.config.model import DEEP_MODELS, Model
from hopper.config.sections import (
    ENGINES,
    Cache,
    Cluster,
    Config,
    Cooperative,
    Data,
    Hop,
    Learnable,
    Pipeline,
    Raf,
    Sampler,
    Task,
    Train,
)

__all__ = [
    "DEEP_MODELS",
    "ENGINES",
    "Cache",
    "Cluster",
    "Config",
    "Cooperative",
    "Data",
    "Hop",
    "Learnable",
    "Model",
    "Pipeline",
    "Raf",
    "Sampler",
    "Task",
    "Train",
    "change_config",
    "load_config",
    "make_config",
    "override",
    "read_config",
    "read_values",
]
