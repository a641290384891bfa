"""The metered door between a method and a problem."""
