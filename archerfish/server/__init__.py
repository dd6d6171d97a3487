"""The service: HTTP in, the engine's answers out. Knows no tensors, no scheduler."""
