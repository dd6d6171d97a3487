"""`archerfish bench`: the list of benchmarks, each imported when it runs."""

from archerfish.cli.lazy import Entry, lazy_group

_COMMANDS = {
    "serve": Entry("serve", "Measure a server under load: latency, throughput, goodput."),
    "sweep": Entry("sweep", "Find the highest load that a server serves in time."),
    "report": Entry("report", "Make an HTML report of a saved run of bench serve."),
    "compare": Entry("compare", "Compare saved runs, with confidence intervals."),
    "latency": Entry("latency", "Measure the latency of a batch in the engine alone."),
    "throughput": Entry("throughput", "Measure the throughput of the engine alone."),
    "ladder": Entry("ladder", "Measure what each optimization adds to naive generation."),
    "kernels": Entry("kernels", "Measure every kernel against the peak of the machine."),
}

command = lazy_group(
    "bench", "archerfish.cli.bench", _COMMANDS, "Measure speed: of the engine, its kernels, or any server."
)
