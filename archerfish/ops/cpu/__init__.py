"""Native CPU kernels: the library, its interface, and programs recorded for it."""
