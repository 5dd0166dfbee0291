"""Parameters that one server alone computes with, where relations or columns are divided.

A relation's weights are read where the relation is stored, and nowhere else (Heta, section 4); and
those of a column where that is (P3, section 3.2). Their gradients need not travel, and other
servers' copies may be left behind until somebody wants the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hopper.cluster import Cluster
from hopper.errors import ExactnessError
from hopper.migrate.packed_model import PackedModel
from hopper.models.relational import HGNN
from hopper.partition.layouts import Holding

NONE: Final[Mapping[str, int]] = MappingProxyType({})


def homes_by_relation(
    model: HGNN, holdings: Sequence[Holding], roots: Sequence[str]
) -> dict[str, int]:
    """By name of a parameter that one server alone is known to compute with, that server;
    parameters as of :func:`servers_of_parameters`."""
    servers = servers_of_parameters(model, holdings, roots)
    return {name: next(iter(each)) for name, each in servers.items() if len(each) == 1}


def servers_of_parameters(
    model: HGNN, holdings: Sequence[Holding], roots: Sequence[str]
) -> dict[str, set[int]]:
    """By name of a parameter, the servers that compute with it; all of them where that is not known
    to be fewer.

    Parameters
    ----------
    holdings: by server, under the names that the model knows. roots: the types of roots.
    """
    everyone = set(range(len(holdings)))
    found: dict[int, set[int]] = {}

    def note(module: nn.Module, server: int) -> None:
        for parameter in module.parameters():
            found.setdefault(id(parameter), set()).add(server)

    for server, held in enumerate(holdings):
        # Every server may finish roots.
        types = {*held.node_types, *roots}
        for each in types.intersection(model.types):
            note(model.input_of(each), server)
        for index in range(len(model.layers)):
            layer = model.relation_layer(index)
            # The last layer makes rows of the roots alone.
            is_last = index + 1 == len(model.layers)
            read = set(held.roots) if is_last else held.relations
            for relation in read.intersection(layer.relations):
                note(layer.aggregation(relation), server)
            for each in (set(roots) if is_last else types).intersection(layer.types):
                note(layer.update(each), server)
    # What belongs to a layer, or to the model, as a whole was not noted, or is shared.
    wholes = [model.head, *(model.relation_layer(i).combination for i in range(len(model.layers)))]
    found |= {id(p): everyone for whole in wholes for p in whole.parameters()}
    return {name: found.get(id(p), everyone) for name, p in model.named_parameters()}


class ParameterHomes:
    """The parameters of a packed model that one server alone computes with: its ranks add their
    gradients up, and nobody else.

    Parameters
    ----------
    homes: by name of a parameter, the one server that computes with it, or, in an array of its
        shape, with each of its numbers; of others, all servers do.
    """

    def __init__(
        self,
        packed: PackedModel,
        cluster: Cluster,
        homes: Mapping[str, int | NDArray[np.int64]] = NONE,
    ) -> None:
        self._packed = packed
        self._cluster = cluster
        self.numbers_apart = 0
        """how many numbers of the model one server alone computes with"""
        if not homes or cluster.servers == 1:
            return
        apart, mine, together = [], [], []
        at = 0
        self._names: list[tuple[int, str]] = []
        """of the parameters, by where they begin"""
        for name, parameter in packed.module.named_parameters():
            if not parameter.requires_grad:
                continue
            places = np.arange(at, at + parameter.numel())
            self._names.append((at, name))
            at += parameter.numel()
            if name in homes:
                apart.append(places)
                home = np.broadcast_to(homes[name], tuple(parameter.shape))
                mine.append(home.ravel() == cluster.server)
            else:
                together.append(places)
        # The loss stands behind the gradients.
        together.append(np.array([at]))
        device = cluster.device
        self._together = torch.from_numpy(np.concatenate(together)).to(device)
        none = np.empty(0, np.int64)
        self._apart = torch.from_numpy(np.concatenate([none, *apart])).to(device)
        self._mine = torch.from_numpy(np.concatenate([none, *mine]).astype(np.bool_)).to(device)
        self._others = self._apart[~self._mine]
        self._summed = torch.cat((self._together, self._apart[self._mine]))
        """what this server's ranks add up, with what goes on to other servers in front"""
        tells = cluster.rank == cluster.server * cluster.ranks_per_server
        self._told = self._mine if tells else torch.zeros_like(self._mine)
        """what this rank tells all others of"""
        self.numbers_apart = self._apart.numel()

    def sum_gradients(self, operation: str) -> None:
        """Add gradients and loss up over ranks, but those that have nobody to be added to.

        Raises
        ------
        ExactnessError: this server computed with a parameter that is taken for another's alone.
        """
        accumulated = self._packed.accumulated
        if not self.numbers_apart:
            self._cluster.all_reduce(accumulated, "gradient", operation)
            return
        wrong = self._others[accumulated.index_select(0, self._others) != 0]
        if wrong.numel():
            place = int(wrong[0])
            name = [own for first, own in self._names if first <= place][-1]
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
        """The sum of squares of all parameters' gradients, to the same bits on every rank."""
        gradients = self._packed.gradients
        if not self.numbers_apart:
            total = gradients.square().sum().double().reshape(1)
            if self._cluster.rank:
                total.zero_()
            self._cluster.all_reduce(total, "control", operation)
            return float(total)
        apart = gradients.index_select(0, self._apart).masked_fill(~self._told, 0.0)
        total = apart.double().square().sum().reshape(1)
        if self._cluster.rank == 0:
            shared = gradients.index_select(0, self._together[:-1])
            total += shared.square().sum()
        self._cluster.all_reduce(total, "control", operation)
        return float(total)

    def complete(self, tensors: Sequence[Tensor], operation: str) -> None:
        """Give every rank what only one server has; every rank has to call it.

        Parameters
        ----------
        tensors: of a number per parameter each, such as parameters, gradients or moments.
        """
        if not self.numbers_apart:
            return
        for tensor in tensors:
            own = tensor.index_select(0, self._apart).masked_fill(~self._told, 0.0)
            self._cluster.all_reduce(own, "control", operation)
            tensor.index_copy_(0, self._apart, own)
