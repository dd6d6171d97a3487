"""Factories of an engine's parts, from resolved settings."""
