"""The engine: the step (engine.py), the offline face (llm.py), and the one place that assembles it (build.py)."""
