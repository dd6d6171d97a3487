"""The CUDA graph backend: captured graphs, and the buffers that steps are read from."""
