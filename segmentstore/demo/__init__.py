"""Demonstrations that check themselves: `make demo`, `make demo-spark`."""
