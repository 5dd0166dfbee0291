"""Let go of the pages of memory maps that a pass is done with.

The kernel drops such pages by itself when memory is short, but until then they count as the
process's own, and whoever watches it sees it hold a graph that it does not need.
"""

from __future__ import annotations

import mmap
from typing import Any

from numpy.typing import NDArray


def release_pages(*arrays: NDArray[Any]) -> None:
    """Unmap what was touched of file maps; they stay readable, and what was written is kept.

    Parameters
    ----------
    arrays: shared maps of files, or views of them. Arrays that are no maps are left as they are.
    """
    advice = getattr(mmap, "MADV_DONTNEED", None)
    for array in arrays:
        owner: Any = array
        while owner is not None and not isinstance(owner, mmap.mmap):
            owner = getattr(owner, "base", None)
        if owner is not None and advice is not None:
            owner.madvise(advice)
