"""Backends that run a model's forward pass: eager torch, a recorded CPU program, CUDA graphs."""
