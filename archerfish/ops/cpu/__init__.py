"""Native kernels for CPUs: what they are told, the library that has them, programs recorded for it."""
