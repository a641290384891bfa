"""From tables of results to tables of a report."""
