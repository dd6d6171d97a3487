"""Execution: what runs a plan. The protocol (executor.py), a local one in torch, a scripted one for tests."""
