"""One thread: tests share the machine, and vectors this small gain nothing from more."""

import torch

torch.set_num_threads(1)
