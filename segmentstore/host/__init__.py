"""Composition: settings, service builder, container manager and registry, standalone."""
