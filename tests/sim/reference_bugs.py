"""Promises that a reference store can be told to break, one at a time."""

BUGS = (
    "ack before sync",
    "tail served before it is synced",
    "zombie acks",
    "half a merge",
    "delete not logged",
    "attribute not logged",
    "attribute without bytes",
    "condition ignored",
    "refusal judged on pending state",
    "recycled bytes in a read",
    "last byte not readable",
    "lost wake-up",
    "truncation goes back",
    "seal forgotten",
    "operations swapped",
    "merge forgotten",
)
