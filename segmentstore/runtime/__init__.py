"""Time, entropy, files, statistics: everything the outside world gives, each behind a door that the simulation can take over."""
