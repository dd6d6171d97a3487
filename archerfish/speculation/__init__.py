"""Guesses of tokens to come, and which of them stand."""
