"""Measures what each optimization adds to the ones before it."""
