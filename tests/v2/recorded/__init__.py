"""What launches Triton kernels without running them: see `tests/v2/test_launches.py`, which starts it."""
