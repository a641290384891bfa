"""What plugin authors write against: methods, problems, and what both are made of."""
