"""Consumer groups: who reads which partitions, and how far it got."""
