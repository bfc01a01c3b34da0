"""What was relaxed, on its way from the device to the people who must see it. Imports no vLLM."""
