"""How far off rows are that ``cluster.feature_wire`` rounds for their way between servers."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from cache_server.row_form import RowForm, find_form
from hopper.cluster import Cluster
from hopper.errors import RequestError
from hopper.features.partitioned import PartitionedRows
from hopper.graph.row_form import RoundingError, find_error
from hopper.graph.schema import EdgeType, NodeType

SAMPLED_ROWS: Final = 1 << 16
"""of each table of a server"""


def measure_wire_error(
    rows: PartitionedRows, cluster: Cluster, wire: str
) -> dict[str, RoundingError]:
    """Round rows of every server as they are on the wire; every rank calls this.

    Each rank reads its server's rows, 65,536 of a table at most, evenly spaced.

    Parameters
    ----------
    wire: as ``cluster.feature_wire`` names it.

    Returns
    -------
    By table of float32 features (a node type, or ``src/rel/dst``), the largest errors of any
    server; none where rows travel as they are stored.

    Raises
    ------
    RequestError: on every rank: the form cannot hold a number of the rows that were read.
    """
    if wire == "stored":
        return {}
    form = find_form(wire)
    schema = rows.graph.schema
    kinds: dict[str, NodeType | EdgeType] = {**schema.node_types}
    kinds |= {str(name): kind for name, kind in schema.relations.items()}
    tables = [name for name, kind in kinds.items() if kind.feature_dtype == "float32"]
    if not tables:
        return {}
    own = [_round_rows(rows, table, form) for table in tables]
    errors = cluster.all_gather(
        torch.tensor(own, dtype=torch.float64), "control", "comparing rounded rows"
    ).amax(0)
    for table, error in zip(tables, errors, strict=True):
        if not error.isfinite().all():
            raise RequestError(
                f"cluster.feature_wire: features of {table} have numbers beyond what {wire} can "
                "hold; expected bfloat16, int8 or stored"
            )
    found = errors.tolist()
    return {table: RoundingError(*error) for table, error in zip(tables, found, strict=True)}


def tell_wire_error(errors: dict[str, RoundingError], wire: str) -> list[str]:
    """A line for each table whose rows are rounded on the wire."""
    return [
        f"features of {table}: approximate, rounded to {wire} between servers: a number is off by "
        f"up to {error.absolute:.2g}, and by {error.relative:.2%} of its row's largest"
        for table, error in errors.items()
    ]


def _round_rows(rows: PartitionedRows, table: str, form: RowForm) -> RoundingError:
    """How far rows of this rank's server are off."""
    stored = rows.graph.stored(table, rows.server)
    places = np.unique(np.linspace(0, stored.count - 1, SAMPLED_ROWS).astype(np.int64))
    if not stored.count:
        return RoundingError(0.0, 0.0)
    ids = places + stored.first if stored.ids is None else stored.ids[places]
    floats: NDArray[np.float32] = rows.local.gather("features", table, np.asarray(ids))
    return find_error(floats, form.decode(form.encode(floats)))
