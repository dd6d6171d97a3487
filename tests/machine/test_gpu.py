"""The GPU is initialized by a thread, and nothing happens without one."""

import pytest

from archerfish.machine import gpu


class Driver:
    """A driver with a GPU, or without: records its calls."""

    def __init__(self, *, has_gpu: bool) -> None:
        self.calls: list[str] = []
        self._has_gpu = has_gpu

    def cuInit(self, _):  # noqa: N802
        self.calls.append("init")
        return 0

    def cuDeviceGet(self, *_):  # noqa: N802
        self.calls.append("device")
        return 0 if self._has_gpu else 100

    def cuDevicePrimaryCtxRetain(self, *_):  # noqa: N802
        self.calls.append("context")
        return 0


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_gpu_is_woken_by_a_thread(has_gpu, monkeypatch):
    driver = Driver(has_gpu=has_gpu)
    monkeypatch.setattr(gpu.ctypes, "CDLL", {"libcuda.so.1": driver}.get)
    gpu.wake_gpu().join()
    assert driver.calls == ["init", "device", *(["context"] if has_gpu else [])]


def test_where_there_is_no_driver_nothing_is_woken(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(gpu.ctypes, "CDLL", missing)
    gpu.wake_gpu().join()
