"""Restoring learnable rows on other ranks than those that wrote the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from torch import Tensor

from hopper.hetero.learnable import LearnableRows, TableShare
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.tensor_file import PLACES, read_facts, read_pieces, read_tensor, tensor_names

IDS_OF: Final = "ids."
"""Prefix of the tensor that holds the original ids of a table's rows."""
_BY_ROW: Final = ("records.", "kept.")
_OF_ALL: Final = "optimizer."


def chain_of_files(files: CheckpointFiles, rank: int, step: int) -> list[Path]:
    """Return the files that hold a rank's rows at a step: one with all rows, then those with
    changes.

    Raises
    ------
    RequestError: the newest file is missing or altered.
    """
    chain = read_facts(files.learnable(rank, step))["progress"]["chain"]
    return [files.learnable(rank, earlier_step) for earlier_step in chain]


def deal_rows(
    files: CheckpointFiles, ranks: int, step: int, learnable: LearnableRows, with_kept: bool
) -> None:
    """Fill this rank's rows from the files of all ranks that wrote the checkpoint.

    Parameters
    ----------
    ranks: how many ranks wrote it.
    with_kept: whether to restore the rows of the best model too.

    Raises
    ------
    RequestError: a file is missing or altered.
    """
    for table in learnable:
        state = table.state(with_kept)
        for rank in range(ranks):
            chain = chain_of_files(files, rank, step)
            if state:
                _fill(table, state, chain)
        table.finish_restore()


def _fill(table: TableShare, state: dict[str, Tensor], chain: list[Path]) -> None:
    originals = read_tensor(chain[0], f"{IDS_OF}{table.name}")
    for file in chain:
        names = tensor_names(file)
        for name, target in state.items():
            if name.startswith(_OF_ALL):
                # All ranks have the same tensor. The last file of the chain has the current one.
                target.copy_(read_tensor(file, name))
            elif name.startswith(_BY_ROW) and name in names:
                has_places = f"{name}{PLACES}" in names
                keys_name = f"{name}{PLACES}" if has_places else f"{IDS_OF}{table.name}"
                for rows, keys in read_pieces(file, [name, keys_name]):
                    ids = originals[keys] if has_places else keys
                    places, is_own = table.find(ids.numpy())
                    target.index_copy_(0, places.to(target.device), rows[is_own].to(target.device))
