"""Time, randomness, files and threads, replaceable in a simulation; machinery that several packages share."""
