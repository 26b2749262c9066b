"""Kafka's protocol, as far as this store speaks it: messages to bytes and back, both directions.

A connection carries frames: a signed 32-bit length of what follows, a header, the body of one message. All numbers are
big endian. No version spoken here is a "flexible" one: lengths are plain numbers, and there are no tagged fields.

Where to look, in the order data flows: `frames` cuts a byte stream into frames and reads the headers, `api_table` says
which API has which messages and versions, `structure` reads and writes a message by its declaration, `fields` says what
one field looks like. The messages are in `produce`, `fetch`, `cluster`, `groups` and `administration`; `error_codes`
has the numbers that answers carry.
"""
