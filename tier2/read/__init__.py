"""Reading below a manifest, for the owner of a container and for every other reader."""
