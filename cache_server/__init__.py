"""Hopper's feature service: rows on disk, served over gRPC. Knows nothing of training."""
