"""The server of Kafka's protocol, over record topics and consumer groups. See DESIGN.md."""
