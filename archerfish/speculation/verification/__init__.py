"""Verification: which draft tokens are accepted, by which rule."""
