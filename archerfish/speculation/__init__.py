"""Proposers and drafters suggest draft tokens, verification accepts them, a controller chooses how many."""
