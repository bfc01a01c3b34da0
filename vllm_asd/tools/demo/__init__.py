"""`python -m vllm_asd.tools.demo`: the same requests, strict and with ASD, through a real `vllm serve`."""
