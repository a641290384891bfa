"""The search of `solve`: a small portfolio of methods and steps, raced in lanes, judged without phi."""
