"""A Triton backend named "cpu", so that Triton counts as usable; the interpreter runs the kernels."""
