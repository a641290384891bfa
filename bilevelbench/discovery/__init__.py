"""Which plugins there are, and what they say about themselves."""
