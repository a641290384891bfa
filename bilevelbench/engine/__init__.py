"""One pack of trials, from its set-up to its rows."""
