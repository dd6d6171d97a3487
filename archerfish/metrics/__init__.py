"""Metrics: they hear of everything and decide nothing."""
