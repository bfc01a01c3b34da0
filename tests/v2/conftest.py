"""Tests of Triton kernels are collected only in a process that was started for them."""

import os

collect_ignore = [] if os.environ.get("VLLM_ASD_TRITON_TESTS") else ["interpreted", "recorded"]
