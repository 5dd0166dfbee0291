"""``[learnable]``: input rows that are learned with the model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hopper.config.section import LocalPath, NonNegative, Number, PositiveNumber, Section


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
