"""The leaderboard: a static site from stored results. Reads tables and JSON only, never torch."""
