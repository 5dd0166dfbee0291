"""Read what graph libraries attach to nodes and edges: features, masks, and the target."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.source_files import first_line
from hopper.graph.importers.tables import ArrayFeatures, GraphTables, find_labelled
from hopper.graph.schema import Relation

_MASK: Final = "_mask"

Masks = dict[str, NDArray[Any]]
"""Ids by split."""


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Convert a tensor, an array or a list to a numpy array.

    Raises
    ------
    GraphError: it is none of these.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            # NumPy has no bfloat16.
            value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
        array = np.asarray(value)
    # Libraries raise many kinds of errors for sparse and other tensors.
    except Exception as error:
        raise GraphError(
            f"{where}: expected a dense tensor or an array: {first_line(error)}"
        ) from error
    if array.dtype == object:
        raise GraphError(f"{where}: expected a tensor or an array, given {type(value).__name__}")
    return array


def take_features(
    data: MutableMapping[str, Any], key: str, where: str, owner: str
) -> ArrayFeatures | None:
    """Take features out of the data; a vector becomes one column.

    Parameters
    ----------
    key: the features' key in the data.
    owner: the node type or relation, for errors.

    Raises
    ------
    GraphError: they have more than two dimensions.
    """
    if data.get(key) is None:
        return None
    rows = as_array(data.pop(key), f"{where}: {key} of {owner}")
    if rows.ndim == 1:
        rows = rows[:, np.newaxis]
    if rows.ndim != 2:
        raise GraphError(
            f"{where}: {key} of {owner}: expected shape [n, d], given {list(rows.shape)}"
        )
    return ArrayFeatures(rows)


def take_masks(
    data: MutableMapping[str, Any], where: str, owner: str, count: int, notes: list[str]
) -> Masks:
    """Take the masks ``<split>_mask`` out of the data, and note which data are left.

    Parameters
    ----------
    count: number of the owner's nodes or edges.

    Raises
    ------
    GraphError: a mask has other values than 0 and 1, or another length.
    """
    masks = {}
    for key in [key for key in data if key.endswith(_MASK)]:
        mask = as_array(data.pop(key), f"{where}: {key} of {owner}")
        if mask.ndim == 2:
            notes.append(f"{key} of {owner}: the first of {mask.shape[1]} splits was taken")
            mask = mask[:, 0]
        if mask.ndim != 1 or (mask.size and not np.isin(mask, (0, 1)).all()):
            raise GraphError(
                f"{where}: {key} of {owner}: expected a mask of 0 and 1, "
                f"given {mask.dtype} of shape {list(mask.shape)}"
            )
        if len(mask) != count:
            raise GraphError(
                f"{where}: {key} of {owner}: expected {count} values, given {len(mask)}"
            )
        masks[key.removesuffix(_MASK)] = np.flatnonzero(mask)
    unread = sorted(key for key in data if not key.startswith("_"))
    if unread:
        notes.append(f"data of {owner} left out: {', '.join(unread)}")
    return masks


def choose_target(tables: GraphTables, masks: Mapping[str | Relation, Masks], where: str) -> None:
    """Choose the target: the node type or relation with masks, or else with labels.

    A node type with labels comes before a relation with labels. Without masks and labels, the only
    node type is the target.

    Raises
    ------
    GraphError: there are several candidates, or none.
    """
    masked = {owner: ids for owner, ids in masks.items() if ids}
    candidates: list[str | Relation] = list(masked or find_labelled(tables) or tables.counts)
    if len(candidates) != 1:
        names = ", ".join(str(candidate) for candidate in candidates)
        raise GraphError(
            f"{where}: target: expected masks or labels on one node type or relation, "
            f"given {names or 'none'}"
        )
    tables.target = candidates[0]
    tables.splits = dict(masked.get(tables.target, {}))
