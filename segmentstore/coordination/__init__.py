"""Small values shared by processes, and sessions that end with their process: ZooKeeper, behind one Protocol."""
