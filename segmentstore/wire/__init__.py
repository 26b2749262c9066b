"""The server of the segment store protocol: Pravega's clients append and read here.

`server` listens, `connection` speaks with one client; DESIGN.md says what lies between.
"""
