"""Run-time formats of weights, keys and values: how many bits a number has, and how it is rounded to them."""

from archerfish.quant.feedback import InputStatistics
from archerfish.quant.formats import KvFormat, WeightFormat

__all__ = ["InputStatistics", "KvFormat", "WeightFormat"]
