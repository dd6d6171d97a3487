"""Weights: where a model lies (locate.py), what its files hold (checkpoint.py), what that makes it
(describe.py), filling a decoder (load.py), heads that guess (heads.py)."""
