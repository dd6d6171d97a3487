"""Operations by Triton kernels: compiled for a GPU, or run by Triton's interpreter where a test has none."""
