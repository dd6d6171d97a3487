"""Benchmarks: loads made, sent and measured; servers over HTTP, the engine and its kernels alone."""
