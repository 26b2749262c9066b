"""The server of the segment store protocol: Pravega's clients append and read here."""
