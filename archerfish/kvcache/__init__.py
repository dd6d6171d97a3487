"""The KV cache: which sequence holds which block (`pool`, `prefix_cache`, `tables`: ids only), and the tensors (`storage`)."""
