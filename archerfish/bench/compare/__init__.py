"""Compares runs with each other."""
