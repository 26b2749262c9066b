"""A store on one machine in several processes, which one parent starts, watches and restarts."""
