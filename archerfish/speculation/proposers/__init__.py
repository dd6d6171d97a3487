"""Proposers without weights: draft tokens copied from texts, or taken from the model's own passes."""
