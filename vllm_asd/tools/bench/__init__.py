"""Speed under load: the same fixed work without speculation, strict, with ASD and in shadow, in turn.

`vllm-asd bench` is the way in. The servers are `vllm serve`, the load is `vllm bench serve`; what is ours is
the order (strict-ASD-strict), the comparison and the report.
"""
