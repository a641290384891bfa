"""What the conformance kit checks."""
