"""Opening a model from the command line."""

import json
import subprocess
import sys

from tests.cli.running import MODEL

_FROZEN_WITH_TORCH = 50_000  # A bare interpreter with click has some thousands.


def test_the_garbage_collector_works_on_but_looks_past_torch() -> None:
    script = (
        "import gc, json, sys\n"
        "from archerfish.cli.main import run\n"
        "seen = []\n"
        "for _ in range(2):\n"
        "    code = run(sys.argv[1:])\n"
        "    seen.append([code, gc.isenabled(), gc.get_freeze_count()])\n"
        "print(json.dumps(seen), file=sys.stderr)\n"
    )
    arguments = ["generate", "Once", *MODEL, "--max-tokens", "1"]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, check=True)
    (*first, frozen), (*second, frozen_later) = json.loads(done.stderr.splitlines()[-1])
    assert first == second == [0, True]
    # A second model must not keep what the first one left behind; frozen objects may still be freed one by one.
    assert _FROZEN_WITH_TORCH < frozen_later <= frozen
