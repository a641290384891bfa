"""Results that were sent in, run again: what is reproduced, what differs, and what no run can have given."""
