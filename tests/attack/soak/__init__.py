"""A service under everything at once for a while: every answer is known beforehand, and everything is counted.

`make soak`, or python -m tests.attack.soak; SOAK_SECONDS says how long.
"""
