"""The pipeline, which plans iterations and reads their rows while earlier ones are computed."""

from hopper.pipeline.pipeline import Pipeline, moments_left

__all__ = ["Pipeline", "moments_left"]
