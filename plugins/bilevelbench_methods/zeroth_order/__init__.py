"""Methods that estimate derivatives by finite differences along random directions."""
