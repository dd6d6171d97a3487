"""Benchmarks: loads are generated, sent and measured; servers over HTTP, the engine, and its kernels alone."""
