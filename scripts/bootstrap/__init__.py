"""The steps of `scripts/setup.py`. Standard library only: this runs before anything is installed."""
