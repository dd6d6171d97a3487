"""The machine that models run on: its CPU, memory and GPU, and measurements of what they can do at most.

Imported before torch: nothing here may import anything heavy.
"""
