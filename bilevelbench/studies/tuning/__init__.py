"""Tuning with the same budget for every method: search spaces, searches, and the suite of the best parameters."""
