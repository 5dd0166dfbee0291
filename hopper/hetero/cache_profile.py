"""What presampling found out, kept in a partitioned directory: one file a rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.shard import NPY_ERRORS
from hopper.errors import GraphError
from hopper.hetero.cache_plan import Profile, TypeProfile

PROFILE_SCHEMA_VERSION: Final = 1
FOLDER: Final = "cache-profiles"
_ABOUT: Final = "about"


@dataclass(frozen=True)
class CacheProfile:
    """Visits and penalties of one rank.

    Attributes
    ----------
    made_for: what of a configuration the visits depend on.
    iterations: that were sampled.
    types: by node type.
    """

    made_for: Mapping[str, Any]
    iterations: int
    types: Profile


def profile_file(partitioned: Path, made_for: Mapping[str, Any], rank: int) -> Path:
    """Where a rank's profile is kept."""
    words = json.dumps(dict(made_for), sort_keys=True)
    key = hashlib.sha256(words.encode()).hexdigest()[:12]
    return partitioned / FOLDER / key / f"rank-{rank}.npz"


def save_profile(profile: CacheProfile, path: Path) -> None:
    """Write a profile under a temporary name, then rename it.

    Raises
    ------
    OSError: it cannot be written.
    """
    about = {
        "schema": PROFILE_SCHEMA_VERSION,
        "made_for": dict(profile.made_for),
        "iterations": profile.iterations,
        "types": {
            each: {"row_bytes": known.row_bytes, "rows": known.rows, "penalty": known.penalty}
            for each, known in profile.types.items()
        },
    }
    arrays: dict[str, NDArray[Any]] = {_ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for place, known in enumerate(profile.types.values()):
        arrays |= {f"ids-{place}": known.ids, f"visits-{place}": known.visits}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished-{path.name}")
    with unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    unfinished.replace(path)


def load_profile(path: Path) -> CacheProfile:
    """Read a profile.

    Raises
    ------
    GraphError: it is missing, damaged, or of another schema version.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            about = json.loads(arrays[_ABOUT].tobytes())
            if about["schema"] != PROFILE_SCHEMA_VERSION:
                raise GraphError(
                    f"{path}: expected schema {PROFILE_SCHEMA_VERSION}, found {about['schema']}"
                )
            types = {
                each: TypeProfile(
                    told["row_bytes"],
                    told["rows"],
                    arrays[f"ids-{place}"],
                    arrays[f"visits-{place}"],
                    told["penalty"],
                )
                for place, (each, told) in enumerate(about["types"].items())
            }
    except FileNotFoundError:
        raise GraphError(f"{path}: no such profile; `hopper cache profile` makes one") from None
    except (OSError, KeyError, AttributeError, *NPY_ERRORS) as error:
        raise GraphError(f"{path}: not a profile of visits: {error}") from error
    return CacheProfile(about["made_for"], about["iterations"], types)
