"""Which plugins are there, and what they say of themselves."""
