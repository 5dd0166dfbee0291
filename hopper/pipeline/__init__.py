"""The data path: iterations are planned, and their rows read, while earlier ones are computed."""

from hopper.pipeline.pipeline import Pipeline

__all__ = ["Pipeline"]
