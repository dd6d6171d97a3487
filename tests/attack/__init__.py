"""Attacks on a real service by tenants of it: nothing of one reaches another, and nobody is held up."""
