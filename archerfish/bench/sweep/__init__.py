"""Measures a server at increasing loads, up to its limit."""
