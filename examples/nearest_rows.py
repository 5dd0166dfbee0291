"""An engine of one's own: every root is trained by the rank that owns most of its neighbours.

It fetches fewer rows of other servers than ``model_centric`` where a root's neighbours lie together
elsewhere. Its gradient is exact: that is a sum over roots, whoever trains them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cache_server.source_draw import neighbour_lists
from hopper.engines.sampled_groups import OneGroup
from hopper.micrograph.route import GlobalBatch


class NearestRows(OneGroup):
    """Each rank trains the roots most of whose in-neighbours it owns; of equals the first."""

    name = "nearest_rows"

    def choose_roots(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """See :class:`OneGroup`; all ranks find the same."""
        state, sampler = self.state, self.state.trainer.sampler
        placement = state.rows.graph.placement(state.cluster.ranks_per_server)
        counts = np.zeros((batch.size, placement.world), np.int64)
        for relation, topology in sampler.topologies.items():
            if relation.dst == sampler.target:
                bounds, sources = neighbour_lists(topology.indptr, topology.indices, batch.roots)
                roots = np.repeat(np.arange(batch.size), np.diff(bounds))
                stored = state.request.reads.types[relation.src]
                np.add.at(counts, (roots, placement.rank_of(stored, sources)), 1)
        return batch.roots[counts.argmax(1) == state.cluster.rank]
