"""Sampling: from logits to tokens. Filters, penalties, seeded noise, log-probabilities."""
