"""One process that runs containers: settings in, a running store out."""
