"""The parameters of one model, of which some may belong to one server each.

The weights of a relation are read only where it is stored (Heta, section 4), so their gradients
need not travel. Copies of other servers are stale until :meth:`ShardedParameters.complete`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hopper.cluster.cluster import Cluster
from hopper.errors import ExactnessError
from hopper.migrate.flat_model import FlatModel
from hopper.models.relational import HGNN
from hopper.partition.description import ServerPartition


def servers_of_parameters(
    model: HGNN, partitions: Sequence[ServerPartition], roots: Sequence[str]
) -> dict[str, set[int]]:
    """Return the servers that compute with each parameter, by name: all of them, if no server's
    ``partitions``, under the model's names, tell otherwise. ``roots`` are the types of roots."""
    everyone = set(range(len(partitions)))
    servers_by_id: dict[int, set[int]] = {}
    for server, partition in enumerate(partitions):
        # Every server may finish roots.
        types = {*partition.node_types, *roots}
        modules: list[nn.Module] = [
            model.input_of(name) for name in types.intersection(model.types)
        ]
        for index in range(len(model.layers)):
            layer, is_last = model.relation_layer(index), index + 1 == len(model.layers)
            # The last layer computes rows of roots only.
            relations = set(partition.roots if is_last else partition.relations)
            modules += [layer.aggregation(r) for r in relations.intersection(layer.relations)]
            finished = {*roots} if is_last else types
            modules += [layer.update(name) for name in finished.intersection(layer.types)]
        for parameter in (p for module in modules for p in module.parameters()):
            servers_by_id.setdefault(id(parameter), set()).add(server)
    # Parameters of the head and of combinations belong to everyone, also if they are shared.
    wholes = [model.head, *(model.relation_layer(i).combination for i in range(len(model.layers)))]
    servers_by_id |= {id(p): everyone for whole in wholes for p in whole.parameters()}
    return {name: servers_by_id.get(id(p), everyone) for name, p in model.named_parameters()}


class ShardedParameters:
    """The parameters of a flat model, of which some are computed with on one server only, whose
    ranks alone sum their gradients. ``servers`` are an engine's ``parameter_servers``."""

    numbers_apart = 0
    """how many numbers of the model only one server computes with"""

    def __init__(
        self, packed: FlatModel, cluster: Cluster, servers: Mapping[str, int | NDArray[np.int64]]
    ) -> None:
        self._packed, self._cluster = packed, cluster
        if not servers or cluster.servers == 1:
            return
        self._trainable = [p for p in packed.module.named_parameters() if p[1].requires_grad]
        by_number = [
            np.broadcast_to(servers.get(name, -1), tuple(parameter.shape)).ravel()
            for name, parameter in self._trainable
        ]
        # The loss follows the gradients in the flat buffer.
        server_of = np.concatenate([*by_number, [-1]])
        is_apart, is_own = server_of >= 0, server_of == cluster.server

        def find(mask: NDArray[np.bool_]) -> Tensor:
            return torch.from_numpy(np.flatnonzero(mask)).to(cluster.device)

        self._together, self._apart, self._others = map(
            find, (~is_apart, is_apart, is_apart & ~is_own)
        )
        self._summed = torch.cat((self._together, find(is_own)))
        """the indices that this server's ranks sum; those that all servers sum come first"""
        sends = cluster.rank == cluster.server * cluster.ranks_per_server
        self._told = torch.from_numpy(is_own[is_apart] & sends).to(cluster.device)
        """which of the numbers apart this rank sends to all others"""
        self.numbers_apart = self._apart.numel()

    def sum_gradients(self, operation: str) -> None:
        """Sum gradients and loss over the ranks that compute with each number."""
        accumulated = self._packed.accumulated
        if not self.numbers_apart:
            self._cluster.all_reduce(accumulated, "gradient", operation)
            return
        wrong = self._others[accumulated.index_select(0, self._others) != 0]
        if wrong.numel():
            stops = np.cumsum([parameter.numel() for _, parameter in self._trainable])
            name, _ = self._trainable[int(np.searchsorted(stops, int(wrong[0]), "right"))]
            raise ExactnessError(
                f"model: parameter {name} belongs to relations or columns of other servers alone, "
                f"and server {self._cluster.server} computed with it; what several aggregations "
                "share has to be registered in each of them"
            )
        summed = accumulated.index_select(0, self._summed)
        apart = self._summed.numel() - self._together.numel()
        self._cluster.all_reduce(summed, "gradient", operation, apart=apart)
        accumulated.index_copy_(0, self._summed, summed)

    def squares(self, operation: str) -> float:
        """Return the sum of squares of all gradients, bit for bit equal on all ranks."""
        shared = gradients = self._packed.gradients
        total = gradients.new_zeros(1, dtype=torch.float64)
        if self.numbers_apart:
            shared = gradients.index_select(0, self._together[:-1])
            total += self._own(gradients).double().square().sum()
        if self._cluster.rank == 0:
            total += shared.square().sum()
        self._cluster.all_reduce(total, "control", operation)
        return float(total)

    def complete(self, tensors: Sequence[Tensor], operation: str) -> None:
        """Give every rank the numbers that only one server has, in flat tensors with a number for
        each parameter, such as gradients or moments. Every rank must call it."""
        for tensor in tensors if self.numbers_apart else ():
            numbers = self._own(tensor)
            self._cluster.all_reduce(numbers, "control", operation)
            tensor.index_copy_(0, self._apart, numbers)

    def _own(self, tensor: Tensor) -> Tensor:
        """Return the numbers apart, 0 for those that this rank does not tell the others."""
        return tensor.index_select(0, self._apart).masked_fill(~self._told, 0.0)
