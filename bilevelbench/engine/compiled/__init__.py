"""Steps that are traced once and then made many at a time, without Python between them (docs/decisions/024)."""
