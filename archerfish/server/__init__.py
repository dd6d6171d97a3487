"""The service: HTTP in, the engine's answers out."""
