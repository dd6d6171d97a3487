"""What a model takes once all its cache was in use: python memory.py CONFIG NUM_REQUESTS prints a JSON object.

Resident is what the process holds for itself: libraries' code, which others may share, does not count.
"""

import gc
import json
import re
import sys
from pathlib import Path

from archerfish import LLM, SamplingParams
from archerfish.ops.packed import PackedWeight

INPUT, OUTPUT = 1984, 63


def main() -> None:
    num_requests = int(sys.argv[2])
    with LLM(
        sys.argv[1],
        load_format="dummy",
        quantization="int4",
        max_model_len=INPUT + OUTPUT + 1,
        max_num_seqs=num_requests,
        enable_prefix_caching=False,
    ) as llm:
        params = SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True)
        llm.generate([list(range(10, 10 + INPUT))] * num_requests, params, progress=False)
        status = Path("/proc/self/status").read_text()
        held = {name: int(size) * 1024 for name, size in re.findall(r"(Rss\w+):\s+(\d+) kB", status)}
        weights = sum(one.nbytes for one in gc.get_objects() if isinstance(one, PackedWeight))
        kv = llm.assembly.cache_size.num_bytes
        print(json.dumps({"resident": held["RssAnon"], "files": held["RssFile"], "weights": weights, "kv": kv}))


if __name__ == "__main__":
    main()
