"""Time, entropy, files, threads, statistics: what the outside world gives, each behind a door that can be replaced."""
