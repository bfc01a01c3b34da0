"""Model Runner V2 and the Triton kernels, on a CPU through Triton's interpreter."""
