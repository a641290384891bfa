"""Tables of results and their files; without torch."""
