"""The data path: iterations are planned, and their rows read, while earlier ones are computed."""

from hopper.pipeline.pipeline import Pipeline, Prepared

__all__ = ["Pipeline", "Prepared"]
