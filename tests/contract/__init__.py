"""What the patches expect of vLLM, held against the installed version and against the other one's source."""
