"""HTTP routes under ``/plugins/asd/``, for servers whose ``VLLM_PLUGINS`` names ``asd``."""

from vllm_asd.serving.endpoints import AsdEndpoints

__all__ = ["AsdEndpoints"]
