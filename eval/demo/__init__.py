"""`python -m eval.demo`: the same requests, strict and with ASD, through a real `vllm serve`."""
