"""Measures each operation against the roofline of the machine."""
