"""The client of all feature servers."""

from cache_server.client.feature_client import FeatureClient, ServerDescription, find_misfit

__all__ = ["FeatureClient", "ServerDescription", "find_misfit"]
