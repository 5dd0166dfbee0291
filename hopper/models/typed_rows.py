"""The rows of several node types in one matrix, so that one operation serves all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from hopper.device.copies import to_device
from hopper.graph.block import TypedBlocks
from hopper.ops.grouped import grouped_product, lay_out_groups
from hopper.ops.groups import Groups
from hopper.ops.linear_map import linear_map


class TypedRows(Mapping[str, Tensor]):
    """Rows by node type, which are ranges of the rows of one matrix.

    Parameters
    ----------
    matrix: [rows of all types, ...].
    sizes: the number of rows by type, in their order.
    groups: the rows of each type, if they were laid out ahead.
    """

    def __init__(
        self, matrix: Tensor, sizes: Mapping[str, int], groups: Groups | None = None
    ) -> None:
        self.matrix, self.sizes = matrix, sizes
        self.groups = groups or Groups.of_sizes(sizes.values())

    @classmethod
    def join(cls, rows: Mapping[str, Tensor]) -> TypedRows:
        """Concatenate the rows of types, in their order."""
        return cls(torch.cat([*rows.values()]), {name: len(part) for name, part in rows.items()})

    @cached_property
    def _parts(self) -> dict[str, Tensor]:
        # One operation for all types, and one for their gradients.
        return dict(zip(self.sizes, self.matrix.split([*self.sizes.values()]), strict=True))

    def __getitem__(self, name: str) -> Tensor:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def replace(self, matrix: Tensor) -> TypedRows:
        """Return other rows of the same nodes."""
        return TypedRows(matrix, self.sizes, self.groups)

    def destinations(self, hop: TypedBlocks, types: Sequence[str]) -> TypedRows:
        """Return the rows of a hop's destinations of some types, which come first in each type."""
        places, groups = lay_out_destinations(hop, list(self), types, self.matrix.device)
        shape = self.matrix.shape
        matrix = linear_map(
            self.matrix,
            lambda rows: rows.index_select(0, places),
            # The places are distinct.
            lambda grad: grad.new_zeros(shape).index_copy_(0, places, grad),
        )
        return TypedRows(matrix, {name: hop.destinations[name] for name in types}, groups)


def lay_out_destinations(
    hop: TypedBlocks, names: Sequence[str], types: Sequence[str], device: torch.device
) -> tuple[Tensor, Groups]:
    """Return [rows] int64, where the destinations of some types are among the sources of all types,
    in the order of ``names``; and the destinations of each type. They are made once."""
    key = ("rows of destinations", *names, None, *types)
    if key not in hop.prepared:
        starts = accumulate((hop.sources[name] for name in names), initial=0)
        first = dict(zip(names, starts, strict=False))
        ranges = [torch.arange(first[n], first[n] + hop.destinations[n]) for n in types]
        groups = Groups.of_sizes(hop.destinations[name] for name in types)
        lay_out_groups(groups, device)
        hop.prepared[key] = to_device(torch.cat(ranges), device), groups
    return hop.prepared[key]


def join_rows(rows: Mapping[Any, Tensor], names: Sequence[Any]) -> Tensor:
    """Concatenate the rows of some types, ascending, or of some relations, to [rows, ...]."""
    if isinstance(rows, TypedRows) and sum(rows.sizes[n] for n in names) == len(rows.matrix):
        # The others have none.
        return rows.matrix
    return rows[names[0]] if len(names) == 1 else torch.cat([rows[name] for name in names])


def linear_by_type(linears: Sequence[nn.Linear], rows: Tensor, types: Groups) -> Tensor:
    """Apply the linear map of each type to its rows, which gives [rows, out]."""
    weights = torch.stack([linear.weight for linear in linears]).transpose(1, 2)
    biases = torch.stack([linear.bias for linear in linears])
    return grouped_product(rows, weights, types, biases)
