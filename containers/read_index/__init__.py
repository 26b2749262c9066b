"""Where every readable byte of a segment is, and how a reader gets it: from the cache, from Tier 2, or by waiting."""
