"""Files of records behind a partition's flush point: made, registered, read, deleted."""
