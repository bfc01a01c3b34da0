# vLLM's own server image with the plugin in it:
#
#     docker build --tag vllm-asd .
#     docker run --gpus all --ipc host -p 8000:8000 -e HF_TOKEN vllm-asd MODEL --speculative-config '{...}'
#
# Never built where it was written, for lack of Docker and of a GPU: a linter (hadolint) has read it, nothing more.
# The entry point is that of vLLM's image: what follows the image's name goes to vLLM's server.
FROM vllm/vllm-openai:v0.33.0

COPY pyproject.toml README.md LICENSE /opt/vllm-asd/
COPY vllm_asd /opt/vllm-asd/vllm_asd

# The plugin's own dependencies do not include vLLM or torch, so the image's stay as they are.
RUN python3 -m pip install --no-cache-dir /opt/vllm-asd \
    && vllm-asd --version
