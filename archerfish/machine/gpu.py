"""Initializes the GPU early, without torch."""

import ctypes
import threading


def wake_gpu() -> threading.Thread:
    """Start a thread that initializes the first GPU, if there is one: it takes about as long as importing torch.

    Errors are ignored: torch runs into them later and describes them.
    """
    thread = threading.Thread(target=_wake_gpu, name="wake the GPU", daemon=True)
    thread.start()
    return thread


def _wake_gpu() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        # The primary context is the one that torch uses, too. It is never released: the process is about to use it.
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
