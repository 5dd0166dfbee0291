"""Hopper's feature service: serves rows on disk over gRPC. It knows nothing of training."""
