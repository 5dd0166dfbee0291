"""What graph libraries attach to nodes and edges: features, labels, masks; and which of them is
predicted."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.source_files import first_line
from hopper.graph.importers.tables import ArrayFeatures, GraphTables, labelled
from hopper.graph.schema import Relation

_MASK: Final = "_mask"

Masks = dict[str, NDArray[Any]]
"""ids by split"""


def as_array(value: Any, where: str) -> NDArray[Any]:
    """An array, from a tensor, an array or a list.

    Raises
    ------
    GraphError: it is none of these.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            # NumPy has no bfloat16.
            value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
        found = np.asarray(value)
    # Libraries tell of sparse and other tensors in many ways.
    except Exception as error:
        raise GraphError(
            f"{where}: expected a dense tensor or an array: {first_line(error)}"
        ) from error
    if found.dtype == object:
        raise GraphError(f"{where}: expected a tensor or an array, given {type(value).__name__}")
    return found


def take_features(
    data: MutableMapping[str, Any], key: str, where: str, owner: str
) -> ArrayFeatures | None:
    """Take features out of the data, a vector standing for one column.

    Parameters
    ----------
    key: that they have. owner: whose, for errors.

    Raises
    ------
    GraphError: they are no matrix.
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
    """Take the masks ``<split>_mask`` out of the data; note what is left in it.

    Parameters
    ----------
    count: of the owner's nodes or edges.

    Raises
    ------
    GraphError: one is no mask of them.
    """
    found = {}
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
        found[key.removesuffix(_MASK)] = np.flatnonzero(mask)
    left = sorted(key for key in data if not key.startswith("_"))
    if left:
        notes.append(f"data of {owner} left out: {', '.join(left)}")
    return found


def choose_target(tables: GraphTables, masks: Mapping[str | Relation, Masks], where: str) -> None:
    """Predict the node type or the relation that has masks; without masks, the one node type that
    has labels, or else the one relation, or the only node type.

    Raises
    ------
    GraphError: there are several, or none.
    """
    masked = {key: found for key, found in masks.items() if found}
    candidates: list[str | Relation] = list(masked or labelled(tables) or tables.counts)
    if len(candidates) != 1:
        given = ", ".join(str(candidate) for candidate in candidates)
        raise GraphError(
            f"{where}: target: expected masks or labels on one node type or relation, "
            f"given {given or 'none'}"
        )
    tables.target = candidates[0]
    tables.splits = dict(masked.get(tables.target, {}))
