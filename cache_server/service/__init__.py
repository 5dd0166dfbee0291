"""The process that serves one server's rows over gRPC."""
