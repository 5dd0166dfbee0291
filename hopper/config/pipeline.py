"""``[pipeline]``: what is prepared while an earlier iteration is trained."""

from __future__ import annotations

from typing import Final

from pydantic import model_validator

from cache_server.available_memory import available_memory
from hopper.config.bounds import parse_size
from hopper.config.section import NonNegative, Positive, Section, Size

_MOST_BYTES: Final = 1 << 30
_PARTS_OF_MEMORY: Final = 8


class Pipeline(Section):
    """``[pipeline]``: What is prepared while an earlier iteration is trained. It does not change
    the results of a run. See docs/inside/pipeline.md."""

    depth: NonNegative = 25
    """The most plans that may wait to be read, unless ``lookahead`` needs more. 0 = nothing is
    prepared ahead."""
    reads: Positive = 5
    """The most iterations that may wait with their rows to be trained."""
    memory: Size | None = None
    """Memory for plans that wait to be read. Iterations that wait to be trained may use as much
    again. Of each, one may wait whatever its size. By default it is 1 GiB, or an eighth of what
    the machine has for a server if that is less."""
    lookahead: NonNegative = 0
    """How many iterations to look ahead when rows of other servers are read. A row that one of
    these iterations reads again is kept until then. By default it is 1 if batches are full, since
    these read the same rows in every iteration. 0 = no row is kept. Features that do not fit memory
    are read for 16 iterations at once whatever it is (docs/inside/pipeline.md)."""
    lookahead_memory: Size = "1G"
    """Memory for the rows that ``lookahead`` keeps."""

    @model_validator(mode="after")
    def _check(self) -> Pipeline:
        if self.lookahead and not self.depth:
            raise ValueError(
                f"lookahead: {self.lookahead} iterations cannot be foreseen where none is planned "
                "ahead; expected 0, or depth above 0"
            )
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of ``memory``."""
        if self.memory is None:
            return min(_MOST_BYTES, available_memory() // _PARTS_OF_MEMORY)
        return parse_size(self.memory)

    @property
    def lookahead_nbytes(self) -> int:
        """Bytes of ``lookahead_memory``."""
        return parse_size(self.lookahead_memory)
