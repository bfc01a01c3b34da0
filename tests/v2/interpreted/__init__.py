"""What needs Triton: run by `tests/v2/test_triton.py` in a process of its own, or natively on a GPU."""
