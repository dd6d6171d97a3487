"""The KV cache: who holds which block (pool, prefix, tables: ids only) and the tensors themselves (storage)."""
