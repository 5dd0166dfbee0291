"""Collect what is wrong with a source, so that one import tells all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from hopper.errors import GraphError

_MOST: Final = 20
"""Number of problems that are told; the others are counted."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Problems:
    """What is wrong with the fields of a source, such as columns of files; one problem a field."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._failed: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._texts)

    def attempt(
        self,
        place: Any,
        field: str,
        step: Callable[_P, _T],
        *arguments: _P.args,
        **keywords: _P.kwargs,
    ) -> _T | None:
        """Take a step of reading a field, unless an earlier one failed."""
        if self.has_failed(place, field):
            return None
        try:
            return step(*arguments, **keywords)
        except GraphError as error:
            self._failed.add((str(place), field))
            self._texts[str(error)] = None
            return None

    def has_failed(self, place: Any, field: str) -> bool:
        """Return whether a step of reading a field has failed."""
        return (str(place), field) in self._failed

    def raise_all(self) -> None:
        """Raise what was kept, if anything was."""
        texts = list(self._texts)
        if len(texts) == 1:
            raise GraphError(texts[0])
        if texts:
            more = [f"and {len(texts) - _MOST:,} more"] if len(texts) > _MOST else []
            raise GraphError(
                "\n  ".join([f"{len(texts):,} problems with the source:", *texts[:_MOST], *more])
            )
