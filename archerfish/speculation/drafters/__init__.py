"""Drafters: proposers with weights, and what they store for each row and block."""
