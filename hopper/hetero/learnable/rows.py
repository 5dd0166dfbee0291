"""A rank's share of all tables of learnable rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from torch import Tensor

from hopper.cluster.array_exchange import exchange_arrays
from hopper.cluster.cluster import Cluster
from hopper.features import distinct
from hopper.features.cached import Lookups
from hopper.graph.topology import Ids
from hopper.hetero.learnable.fetched import FetchedRows
from hopper.hetero.learnable.leaf import LeafRows
from hopper.hetero.learnable.messages import Routes, RowMessages
from hopper.hetero.learnable.table import TableShare


class LearnableRows:
    """One rank's share of every table, sorted by name. All ranks have the same tables. Without any,
    no method sends a message."""

    def __init__(self, cluster: Cluster, shares: Iterable[TableShare] = ()) -> None:
        self._tables = {share.name: share for share in sorted(shares, key=lambda share: share.name)}
        self._read_as = {name: share.name for share in self for name in share.read_as}
        # Rows and gradients travel beside other messages, so they have their own connections.
        self._cluster = cluster.second_channel() if self._tables else cluster

    def close(self) -> None:
        """Close connections. Every rank must call it."""
        if self._tables:
            self._cluster.close()

    def __iter__(self) -> Iterator[TableShare]:
        return iter(self._tables.values())

    def __len__(self) -> int:
        return len(self._tables)

    def __getitem__(self, table: str) -> TableShare:
        return self._tables[table]

    def ask(
        self, wanted: Mapping[str, Sequence[Ids]], where: str, through: Cluster | None = None
    ) -> list[Routes]:
        """Tell the owners of rows which ranks read them, and return the routes of each table; every
        rank must call it.

        ``wanted`` are the ids that this rank reads, in any number of groups, by name of a type in
        subgraphs. Types may be missing, and types that read no table are ignored. ``where`` is the
        moment, for errors. ``through`` are other connections between the same ranks, for a call
        during other messages.
        """
        cluster = through or self._cluster
        ids = distinct_by_table(wanted, self._read_as)
        dealt = [share.placement.deal(share.name, ids[share.name]) for share in self]
        parts = [[*by_owner] for by_owner in dealt]
        own_ids = [by_rank[cluster.rank] for by_rank in parts]
        for by_rank in parts:
            by_rank[cluster.rank] = np.empty(0, np.int64)
        operation = f"asking for learnable rows, {where}"
        asked = exchange_arrays(cluster, parts, "feature", operation)
        for by_reader, table_ids in zip(asked, own_ids, strict=True):
            by_reader[cluster.rank] = table_ids
        return [
            Routes(share, by_owner, [share.places_of(reader_ids) for reader_ids in by_reader])
            for share, by_owner, by_reader in zip(self, dealt, asked, strict=True)
        ]

    def fetch(
        self,
        routes: Sequence[Routes],
        where: str,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> FetchedRows:
        """Begin to fetch the rows of an iteration, which will be trained, by the routes of
        :meth:`ask`; every rank must call it. ``waiting`` makes a context that is entered while this
        rank waits for rows of others."""
        return FetchedRows(self._cluster, routes, self._read_as, where, waiting)

    def read(self, wanted: Mapping[str, Sequence[Ids]], where: str) -> LeafRows:
        """Read rows without training them; every rank must call it. Arguments are those of
        :meth:`ask`."""
        routes = self.ask(wanted, where)
        if not routes:
            return LeafRows({}, self._read_as)

        def gather(table: int, rank: int, out: Tensor) -> None:
            routes[table].share.records.read_rows(routes[table].asked[rank], out)

        messages = RowMessages(self._cluster, routes, 0)
        rows, exchange = messages.start_fetch(gather, where)
        if exchange is not None:
            exchange.finish()
        return LeafRows(messages.make_leaves(routes, rows), self._read_as)

    def take_lookups(self) -> dict[str, Lookups]:
        """Return the cache lookups since the last call, by table that caches records."""
        by_table = {share.name: share.records.take_lookups() for share in self}
        return {name: lookups for name, lookups in by_table.items() if lookups is not None}


def distinct_by_table(
    wanted: Mapping[str, Sequence[Ids]], tables: Mapping[str, str]
) -> dict[str, Ids]:
    """Merge the ids that types read, in groups, into the distinct ids [n] of each table, ascending,
    by the table's name, sorted. ``tables`` has each type's table."""
    groups: dict[str, list[Ids]] = {table: [] for table in sorted(set(tables.values()))}
    for name, ids in wanted.items():
        if name in tables:
            groups[tables[name]] += ids
    return {table: distinct(ids) for table, ids in groups.items()}
