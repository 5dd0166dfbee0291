"""All tables of learnable rows that a rank has a share of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from torch import Tensor

from hopper.array_exchange import exchange_arrays
from hopper.cluster import Cluster
from hopper.features.cached import Lookups
from hopper.hetero.learnable.fetched import FetchedRows
from hopper.hetero.learnable.leaf import Ids, Leaf, LeafRows
from hopper.hetero.learnable.messages import Routes, RowMessages
from hopper.hetero.learnable.table import TableShare


class LearnableRows:
    """One rank's share of every table, in order of name.

    Where nothing is learned there is no table: then nothing is done, and nobody is talked to.

    Parameters
    ----------
    shares: of the same tables on every rank.
    """

    def __init__(self, cluster: Cluster, shares: Iterable[TableShare] = ()) -> None:
        self._tables = {share.name: share for share in sorted(shares, key=lambda share: share.name)}
        self._read_as = {name: share.name for share in self for name in share.read_as}
        # Rows and gradients leave when they are there, whatever else ranks say to each other then.
        self._cluster = cluster.second_channel() if self._tables else cluster

    def close(self) -> None:
        """Let go of connections; every rank has to call it."""
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
        """Tell rows' owners who reads them; every rank has to call it.

        Parameters
        ----------
        wanted: by name of a type in subgraphs, ids in any number of groups. A type may be missing,
            and types that read no table are passed over.
        where: names the moment in errors.
        through: a channel of the same ranks, if this is called beside what else they do.

        Returns
        -------
        For each table.
        """
        cluster = through or self._cluster
        ids = distinct_by_table(wanted, self._read_as)
        dealt = [share.placement.deal(share.name, ids[share.name]) for share in self]
        parts = [by_owner.parts() for by_owner in dealt]
        own = [by_rank[cluster.rank] for by_rank in parts]
        for by_rank in parts:
            by_rank[cluster.rank] = np.empty(0, np.int64)
        operation = f"asking for learnable rows, {where}"
        asked = exchange_arrays(cluster, parts, "feature", operation)
        for by_reader, ids_here in zip(asked, own, strict=True):
            by_reader[cluster.rank] = ids_here
        return [
            Routes(share, by_owner, [share.places_of(read) for read in by_reader])
            for share, by_owner, by_reader in zip(self, dealt, asked, strict=True)
        ]

    def fetch(
        self,
        routes: Sequence[Routes],
        where: str,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> FetchedRows:
        """Read rows that were asked for, wherever they are, to learn them; every rank has to call
        it.

        Parameters
        ----------
        routes: as of :meth:`ask`. where: names the moment in errors.
        waiting: makes what is entered while those of other ranks are waited for.
        """
        return FetchedRows(self._cluster, routes, self._read_as, where, waiting)

    def read(self, wanted: Mapping[str, Sequence[Ids]], where: str) -> LeafRows:
        """Read rows as they are, of which no gradient is wanted; as :meth:`fetch`."""
        routes = self.ask(wanted, where)
        if not routes:
            return LeafRows({}, self._read_as)

        def gather(table: int, rank: int, out: Tensor) -> None:
            routes[table].share.records.read_rows(routes[table].asked[rank], out)

        messages = RowMessages(self._cluster, routes, 0)
        rows, under_way = messages.start_fetch(gather, where)
        if under_way is not None:
            under_way.finish()
        leaves = {
            each.share.name: Leaf(each.wanted.nodes, rows, False, messages.places(number))
            for number, each in enumerate(routes)
        }
        return LeafRows(leaves, self._read_as)

    def take_lookups(self) -> dict[str, Lookups]:
        """By table, how many records were looked for in memory since the last call; of tables that
        hold some there."""
        taken = {share.name: share.records.take_lookups() for share in self}
        return {name: lookups for name, lookups in taken.items() if lookups is not None}


def distinct_by_table(
    wanted: Mapping[str, Sequence[Ids]], tables: Mapping[str, str]
) -> dict[str, Ids]:
    """By table, in order of name, [n] ascending: the ids that any type that reads it wants.

    Parameters
    ----------
    wanted: by name of a type, ids in groups. tables: by name of a type, its table.
    """
    groups: dict[str, list[Ids]] = {table: [] for table in sorted(set(tables.values()))}
    for name, ids in wanted.items():
        if name in tables:
            groups[tables[name]] += ids
    return {table: distinct(ids) for table, ids in groups.items()}


def distinct(groups: Sequence[Ids]) -> Ids:
    """[n] ascending: the ids that are in any group."""
    if not groups:
        return np.empty(0, np.int64)
    # np.unique takes five times as long: it hashes them first.
    ids = np.sort(np.concatenate(groups))
    is_new = np.ones(ids.size, np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=is_new[1:])
    return ids[is_new]
