"""Agents of a distributed method, in processes of their own."""
