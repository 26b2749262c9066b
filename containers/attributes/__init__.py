"""What attribute updates come to, and extended attributes: fetched when unknown, held in memory within a bound."""
