"""Drafters: proposers with weights, and what they need of the rows and the KV cache."""
