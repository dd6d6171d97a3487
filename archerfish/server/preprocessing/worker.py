"""A preprocessing worker: reads one body after the other, each within limits of processor time and memory.

A hostile body or chat template ends at most this process. Its limits are on processor time, so that a busy machine ends
nothing that is in order; the service also has a limit on the time that it waits.

python -m archerfish.server.preprocessing.worker HANDLE
"""

import os
import pickle
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from archerfish.api.model import ServedModel
from archerfish.server.preprocessing.protocol import (
    LAST_OUTCOME,
    LENGTH,
    OUTCOME,
    READY,
    ModelSpec,
    PreprocessingJob,
    TooMuch,
    encode_outcome,
    load_model,
)

_MAX_RETAINED = 64 << 20
"""Bytes by which a worker may have grown after a job; with more it ends, and a new one replaces it."""
_GRACE = 1.0
"""Seconds of processor time after which what does not notice the limit is killed."""


class _OutOfTime(BaseException):
    """Not an Exception: whatever handles those must not take it for a mistake of the body."""


def main(handle: int) -> None:
    """Answer jobs until the service closes its end."""
    connection = socket.socket(fileno=handle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A Ctrl-C is for the service, which ends this process.
    with suppress(EOFError, ConnectionError):
        spec: ModelSpec = pickle.loads(_receive(connection))
        model = load_model(spec, time.monotonic)
        _limit_memory(spec.max_growth)
        _send(connection, READY)
        loaded = _resident_bytes()
        kind = OUTCOME
        while kind == OUTCOME:
            job: PreprocessingJob = pickle.loads(_receive(connection))
            outcome = encode_outcome(_run(job, model, spec))
            del job
            kind = OUTCOME if _resident_bytes() - loaded < _MAX_RETAINED else LAST_OUTCOME
            _send(connection, kind, outcome)


def _run(job: PreprocessingJob, model: ServedModel, spec: ModelSpec) -> object:
    signal.signal(signal.SIGPROF, _end_job)
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, job.seconds, _GRACE)
            return job.run(model, spec.limits)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _OutOfTime:
        return TooMuch.processor_time(job).reply
    except MemoryError:
        return TooMuch.memory(spec).reply
    except BaseException as error:
        # Native libraries panic where Python raises a MemoryError; a panic is no Exception.
        if isinstance(error, Exception) or "memory" not in str(error):
            raise
        return TooMuch.memory(spec).reply


def _end_job(_number: int, _frame: FrameType | None) -> None:
    # The second time nothing in Python is waited for any more.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    raise _OutOfTime


def _limit_memory(max_growth: int) -> None:
    """Limit the further growth of this process, if the system reports its size."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        limit = 1024 * int(fields["VmData"].split()[0]) + max_growth
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _resident_bytes() -> int:
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _receive(connection: socket.socket) -> bytes:
    (length,) = LENGTH.unpack(_receive_exactly(connection, LENGTH.size))
    return bytes(_receive_exactly(connection, length))


def _receive_exactly(connection: socket.socket, length: int) -> bytearray:
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    return buffer


def _send(connection: socket.socket, kind: bytes, data: bytes = b"") -> None:
    connection.sendall(LENGTH.pack(len(kind) + len(data)) + kind)
    connection.sendall(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
