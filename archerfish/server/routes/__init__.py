"""One file for each group of endpoints."""
