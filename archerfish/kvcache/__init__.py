"""The KV cache: block ids of sequences (`pool`, `prefix_cache`, `tables`), and the tensors (`storage`)."""
