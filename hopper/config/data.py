"""``[data]``, ``[learnable]`` and ``[cache]``: the graph, rows that are learned, rows in memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hopper.config.section import (
    LocalPath,
    NonNegative,
    Number,
    Options,
    Positive,
    PositiveNumber,
    Section,
    names,
)


class Data(Section):
    """``[data]``: The graph to train on."""

    partitioned: LocalPath
    """The directory that ``hopper partition`` wrote."""
    verify: Literal["quick", "full", "off"] = "quick"
    """Which files are compared with their checksums. "quick" checks features during training, as
    far as time allows, and all other files before the run. "full" checks everything before the run.
    "off" checks nothing.
    See docs/reference/partition-directory.md."""
    features: dict[str, Annotated[str, names()]] = Field(default={})
    """The class that supplies the features of a node type, as {type = "package.module:Class"}.
    Ranks and feature servers read from it instead of the partitions' files. See
    docs/howto/plug-ins.md."""
    features_options: dict[str, Options] = Field(default={})
    """Keyword arguments of the classes in ``features``, by node type."""

    @model_validator(mode="after")
    def _check(self) -> Data:
        for node_type in self.features_options:
            if node_type not in self.features:
                raise ValueError(f"features_options.{node_type}: features does not name the type")
        return self


class Learnable(Section):
    """``[learnable]``: Input rows that are learned with the model."""

    types: list[str] = Field(default=[])
    """Node types that have learnable rows beside their features. Types without features always have
    learnable rows."""
    dim: NonNegative = 0
    """Width of a learnable row. 0 = model.hidden."""
    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    """The optimiser of learnable rows, in its sparse form. It updates only the rows that an
    iteration has read, without weight decay."""
    learning_rate: PositiveNumber = 0.01
    """The learning rate of learnable rows. train.schedule multiplies it too."""
    tables: Literal["tied", "per_server_table", "per_relation"] = "tied"
    """How many learnable rows a node has. "tied" = one. "per_server_table" = one in each
    sub-metatree that reads it (Heta), so that its rows never leave a server with the sub-metatree.
    "per_relation" = one for each relation that reads it, like the one-hot vectors of R-GCN. The
    last two are other models than "tied"."""
    deviation: Number = 0.0
    """Standard deviation of the first values of rows. 0 = one over the square root of ``dim``."""
    l2: Number = 0.0
    """The factor of an L2 penalty. This number times the row is added to the gradient of each row
    that an iteration has read. Weight decay would change all other rows too."""
    initial: LocalPath = ""
    """The folder of the first values of rows: files <type>.npy of shape [count, dim], by original
    id. Rows of types without a file begin with random values. Empty = all rows do."""
    frozen: list[str] = Field(default=[])
    """Node types whose rows keep their first values."""
    storage: Literal["memory", "host", "mmap"] = "memory"
    """Where the rows and their optimiser's state are stored. "memory" stores them with the model.
    "host" stores them in host memory, which may be larger than the memory of a device. "mmap"
    stores them in mapped files, which may be larger than host memory. For "host" and "mmap",
    ``[cache]`` can keep some of the rows where the model is."""
    folder: LocalPath = ""
    """The folder of the mapped files, on a disk of the rank's machine. Empty = train.run_dir."""


class Cache(Section):
    """``[cache]``: Rows that a rank keeps in memory to read them less often. They are rows of other
    servers, rows that are copied to a device, and learnable rows whose storage is host memory or
    disk. See docs/howto/cache.md."""

    policy: Literal["none", "lru", "hotness", "hotness+penalty", "benefit"] = "none"
    """Which rows are kept. "none" keeps none. "lru" keeps the rows that were read last. The other
    policies count visits by sampling before training. "hotness" keeps the most visited rows of each
    type, and gives each type room in proportion to its visits. "hotness+penalty" gives room in
    proportion to visits times the cost of a missing byte. "benefit" ranks single rows of all types
    by visits times this cost."""
    size: str = "0"
    """Memory for the cached rows of each rank, such as "512M", or "10%" of all rows that could be
    missing. The cache needs 4 more bytes for each node."""
    memory: Literal["host", "device"] = "host"
    """Where feature rows are kept. "device" keeps them where the rank trains. It keeps rows of the
    rank's own server too, since they must be copied to the device. It works under every engine."""
    presample_epochs: Positive = 2
    """How many epochs are sampled before training to count visits. It is not read if a profile is
    saved."""
    decline: bool = True
    """Whether to keep no learnable rows where a cache costs more than it saves. That is so for rows
    on disk if all of them fit in free memory, since the kernel keeps them there. It is also so for
    rows in host memory if the model is there too. false = keep them all the same."""
