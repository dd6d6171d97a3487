"""`archerfish tune`: the list of tuning commands, each imported when it runs."""

from archerfish.cli.lazy import Entry, lazy_group

_COMMANDS = {
    "kernels": Entry("kernels", "Measure how a model's products are best cut on this GPU, and keep it."),
}

command = lazy_group(
    "tune", "archerfish.cli.tune", _COMMANDS, "Measure what is fastest here, and store it for later starts."
)
