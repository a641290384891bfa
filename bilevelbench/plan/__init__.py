"""What is to be run, as data."""
