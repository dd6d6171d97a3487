"""Run-time formats of weights, keys and values: how many bits a number has, and how it is rounded to them."""

from archerfish.quant.formats import KvFormat, WeightFormat

__all__ = ["KvFormat", "WeightFormat"]
