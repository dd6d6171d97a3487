"""Run-time formats of weights: how many bits a number has, and how it is rounded to them."""

from archerfish.quant.feedback import InputStatistics
from archerfish.quant.formats import WeightFormat

__all__ = ["InputStatistics", "WeightFormat"]
