"""Streams: epochs of segments over the key space, and the verbs that change them step by step."""
