"""Methods that differentiate through the iterations of a lower-level solver."""
