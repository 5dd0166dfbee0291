"""Names of the files and folders of a partitioned directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

DESCRIPTION_FILE: Final = "partition.json"
ROOTS_FOLDER: Final = "roots"
"""Name of the folder, in a server's folder, with its part of a root relation's edges into roots."""
MapName = Literal["original_ids", "global_ids"]
MAP_NAMES: Final[tuple[MapName, ...]] = get_args(MapName)


def server_folder(path: Path, server: int) -> Path:
    """Return the folder of the files that only one server needs."""
    return path / f"server-{server}"


def stored_ids_file(folder: Path, node_type: str) -> Path:
    """Return the file of the ids whose rows a server stores, if it stores some of a type's rows."""
    return folder / "held" / f"{node_type}.npy"


def listed_file(folder: Path, node_type: str) -> Path:
    """Return the file of the ids of nodes whose in-edges a server with a halo stores."""
    return folder / "topology" / f"{node_type}.npy"


def map_file(path: Path, node_type: str, name: MapName) -> Path:
    """Return the file of one of a node type's two maps."""
    return path / "maps" / node_type / f"{name}.npy"


def ranks_file(path: Path, node_type: str) -> Path:
    """Return the file of each node's rank among those of its server, if ranks follow locality."""
    return path / "ranks" / f"{node_type}.npy"
