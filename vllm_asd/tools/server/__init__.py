"""A `vllm serve` that starts with progress, fails with its reason, and leaves no process behind.

with VllmServer(model_dir, ["--enforce-eager"]) as server:
client = openai.OpenAI(base_url=server.base_url + "/v1", api_key="none")
"""

from vllm_asd.tools.server.metrics import Metrics
from vllm_asd.tools.server.process import ServerDied
from vllm_asd.tools.server.vllm_server import VllmServer

__all__ = ["Metrics", "ServerDied", "VllmServer"]
