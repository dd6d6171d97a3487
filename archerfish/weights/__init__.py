"""Weights: where a model is (locate.py), what its files hold (checkpoint.py), a summary of it (describe.py), filling a
decoder (load.py), draft heads (heads.py)."""
