"""The segment store protocol of Pravega, versions 5 to 17: commands to bytes and back.

A connection carries frames in both directions: a signed 32-bit type, a signed 32-bit length of what follows, then the
fields of the command. All numbers are big endian. A frame with its header is at most FRAME_BYTES_MAX long.

Where to look, in the order data flows: `frames` cuts a byte stream into frames and finds the command of a type,
`command` reads and writes the fields, `fields` says what a field looks like. The commands are in `command`, `appends`,
`reads`, `segments`, `tables`, `administration`, `refusals` and, of our own, `store_calls`.
"""
