"""`vllm-asd explain`: a response with each exception, and what the target would have said."""
