"""Weights: where a model lies (locate.py), what its files hold (checkpoint.py), filling a decoder (load.py)."""
