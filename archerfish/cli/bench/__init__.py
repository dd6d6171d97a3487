"""`archerfish bench`: finds the benchmark that was asked for. Knows none of them."""

from archerfish.cli.lazy import Entry, lazy_group

_COMMANDS = {
    "serve": Entry("serve", "Measure a server under load: latency, throughput, goodput."),
    "sweep": Entry("sweep", "Measure a server at many loads, and find the most that it serves in time."),
    "report": Entry("report", "Make a page of charts from a saved run of bench serve."),
    "compare": Entry("compare", "Say what differs between saved runs, and how surely."),
    "latency": Entry("latency", "Measure how long one batch takes in the engine alone."),
    "throughput": Entry("throughput", "Measure how many tokens a second the engine alone computes."),
    "ladder": Entry("ladder", "Measure what each optimization adds, starting from naive recomputation."),
    "kernels": Entry("kernels", "Measure every kernel against what the machine can do at most."),
}

command = lazy_group(
    "bench", "archerfish.cli.bench", _COMMANDS, "Measure speed: of the engine, its kernels, or any server."
)
