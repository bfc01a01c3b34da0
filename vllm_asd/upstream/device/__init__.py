"""Triton kernels made of vLLM's own device functions; imported only by a runner that has Triton."""
