"""The configuration: a TOML file, checked before any work starts.

``--section.key value`` overrides a key. An unknown key is an error. Each section is a class, which
has its keys. A :class:`Config` and its sections cannot be changed. :func:`change_config` makes
another one.
"""

from hopper.config.cluster import Cluster
from hopper.config.data import Cache, Data, Learnable
from hopper.config.engines import ENGINES, Cooperative, Hop, Raf
from hopper.config.loading import (
    change_config,
    load_config,
    make_config,
    override,
    read_config,
    read_values,
)
from hopper.config.model import DEEP_MODELS, Model
from hopper.config.pipeline import Pipeline
from hopper.config.sampler import Sampler
from hopper.config.sections import Config
from hopper.config.task import Task
from hopper.config.train import Train

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
