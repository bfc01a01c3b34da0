"""The experiments behind the figures: frontier, shadow, rounds; with every recorded answer. Not installed."""
