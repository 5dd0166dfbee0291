"""``[cache]``: rows that a rank keeps in memory."""

from __future__ import annotations

from typing import Literal

from hopper.config.section import Positive, Section


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
