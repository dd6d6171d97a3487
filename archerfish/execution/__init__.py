"""Execution: the executors that run a plan, and the sizing of their memory."""
