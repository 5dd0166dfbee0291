"""Profiles of visits and penalties, stored in a partitioned directory as one file per rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.store.npy import NPY_ERRORS
from hopper.errors import GraphError
from hopper.features.cache_plan import Profile, TypeProfile
from hopper.files.whole_files import replacing

PROFILE_SCHEMA_VERSION: Final = 2
FOLDER: Final = "cache-profiles"
_ABOUT: Final = "about"


@dataclass(frozen=True)
class CacheProfile:
    """The visits and penalties of one rank."""

    made_for: Mapping[str, Any]
    """the values of the configuration that the visits depend on"""
    iterations: int
    """the number of sampled iterations"""
    types: Profile
    """the visits and penalties, by node type"""


def profile_file(partitioned: Path, made_for: Mapping[str, Any], rank: int) -> Path:
    """Return the path of a rank's profile."""
    text = json.dumps(dict(made_for), sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    return partitioned / FOLDER / key / f"rank-{rank}.npz"


def save_profile(profile: CacheProfile, path: Path) -> None:
    """Write a profile, whole or not at all (:class:`OSError`)."""
    about = {
        "schema": PROFILE_SCHEMA_VERSION,
        "made_for": dict(profile.made_for),
        "iterations": profile.iterations,
        "types": {
            name: {"row_bytes": visited.row_bytes, "rows": visited.rows}
            for name, visited in profile.types.items()
        },
    }
    arrays: dict[str, NDArray[Any]] = {_ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for index, visited in enumerate(profile.types.values()):
        arrays |= {f"ids-{index}": visited.ids, f"visits-{index}": visited.visits}
        arrays[f"penalty-{index}"] = np.asarray(visited.penalty)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_profile(path: Path) -> CacheProfile:
    """Read a profile. A :class:`GraphError` says that the file is missing, damaged, or of another
    schema version."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            about = json.loads(arrays[_ABOUT].tobytes())
            if about["schema"] != PROFILE_SCHEMA_VERSION:
                raise GraphError(
                    f"{path}: expected schema {PROFILE_SCHEMA_VERSION}, found {about['schema']}"
                )
            types = {
                name: TypeProfile(
                    described["row_bytes"],
                    described["rows"],
                    arrays[f"ids-{index}"],
                    arrays[f"visits-{index}"],
                    arrays[f"penalty-{index}"],
                )
                for index, (name, described) in enumerate(about["types"].items())
            }
    except FileNotFoundError:
        raise GraphError(
            f"{path}: no such profile; `hopper inspect cache CONFIG --profile` makes one"
        ) from None
    except (OSError, KeyError, AttributeError, *NPY_ERRORS) as error:
        raise GraphError(f"{path}: not a profile of visits: {error}") from error
    return CacheProfile(about["made_for"], about["iterations"], types)
