"""Weights: where a model lies (locate.py), what its files hold (checkpoint.py), bringing them into a decoder (load.py)."""
