"""Measures the engine alone, without HTTP."""
