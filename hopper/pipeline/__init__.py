"""The pipeline, which plans iterations and reads their rows while earlier ones are computed."""

from hopper.pipeline.pipeline import Pipeline

__all__ = ["Pipeline"]
