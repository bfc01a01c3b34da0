"""The only folder that knows vLLM's internals: one file per seam, every patch a record."""
