"""Real engines: vLLM on a CPU, in processes of their own."""
