"""Reader groups and the positions up to which subscribers have consumed."""
