"""`archerfish tune`: the list of tuning commands, each imported when it runs."""

from archerfish.cli.lazy import Entry, lazy_group

_COMMANDS = {
    "kernels": Entry("kernels", "Measure the fastest tiles of a model's GEMMs on this GPU, and store them."),
}

command = lazy_group(
    "tune", "archerfish.cli.tune", _COMMANDS, "Measure what is fastest here, and store it for later starts."
)
