"""Programs to read and to run, as often as you like: `python -m segmentstore.client.examples.NAME [tcp://HOST:PORT]`."""
