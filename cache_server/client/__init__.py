"""The client of all feature servers."""

from cache_server.client.feature_client import FeatureClient, find_misfit

__all__ = ["FeatureClient", "find_misfit"]
