"""Rates: the exponent that a paper claims for a method, beside the one that is measured on a hard instance."""
