"""Nodes, leaders and the assignment of containers: what processes of one store agree on through ZooKeeper."""
