"""Sampling state of the rows: edits of logits, penalties, grammars, log-probabilities.

The draw itself, with filters and seeded noise, is an operation: `ops.reference.drawing` and what equals it bit by bit.
"""
