"""Measures the error of rounding features between servers (``cluster.feature_wire``)."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from cache_server.feature_codec import FeatureCodec, find_codec
from hopper.cluster.cluster import Cluster
from hopper.errors import RequestError
from hopper.features.partitioned import PartitionedRows
from hopper.graph.columns import RoundingError, find_error

_SAMPLED_ROWS: Final = 1 << 16


def measure_wire_error(
    rows: PartitionedRows, cluster: Cluster, wire: str
) -> dict[str, RoundingError]:
    """Round rows of every server, evenly spaced and at most 65,536 of a table, as
    ``cluster.feature_wire`` has it. Every rank must call this."""
    kinds = rows.graph.schema.feature_tables
    tables = [name for name, kind in kinds.items() if kind.feature_dtype == "float32"]
    if wire == "stored" or not tables:
        return {}
    errors_here = [_round_rows(rows, table, find_codec(wire)) for table in tables]
    errors = cluster.all_gather(
        torch.tensor(errors_here, dtype=torch.float64), "control", "comparing rounded rows"
    ).amax(0)
    for table, error in zip(tables, errors, strict=True):
        if not error.isfinite().all():
            raise RequestError(
                f"cluster.feature_wire: features of {table} have numbers beyond what {wire} can "
                "hold; expected bfloat16, int8 or stored"
            )
    return {t: RoundingError(*error) for t, error in zip(tables, errors.tolist(), strict=True)}


def tell_wire_error(errors: dict[str, RoundingError], wire: str) -> list[str]:
    """Return a line of text for each table whose rows are rounded on the wire."""
    return [
        f"features of {table}: approximate, rounded to {wire} between servers: {error}"
        for table, error in errors.items()
    ]


def _round_rows(rows: PartitionedRows, table: str, codec: FeatureCodec) -> RoundingError:
    """Return how much a codec rounds rows of this rank's server."""
    stored = rows.graph.stored(table, rows.server)
    places = np.unique(np.linspace(0, stored.count - 1, _SAMPLED_ROWS).astype(np.int64))
    if not stored.count:
        return RoundingError(0.0, 0.0)
    ids = places + stored.first if stored.ids is None else stored.ids[places]
    floats: NDArray[np.float32] = rows.local.gather("features", table, np.asarray(ids))
    return find_error(floats, codec.decode(codec.encode(floats)))
