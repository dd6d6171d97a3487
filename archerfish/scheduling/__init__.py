"""Scheduling: who computes which tokens in the next step. Plain data and arithmetic; no torch anywhere."""
