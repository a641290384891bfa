"""Experiments that plan their next trials by what they have seen."""
