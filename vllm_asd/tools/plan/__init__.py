"""Whether speculation pays: tokens per round, speed-up and break-even points from acceptance and costs.

Pure arithmetic on plain numbers, no vLLM and no torch. It lives in `eval`, which the wheel installs beside
`vllm_asd`, because benchmark reports put its prediction beside what they measured. Fractions go in and come
out as fractions, so that an exact figure can be compared exactly.
"""
