"""What an instance answers, and so what an oracle can be asked."""

from __future__ import annotations

#: What an instance answers, and so what an oracle can be asked.
QUERIES = (
    "grad_f", "grad_f_x", "grad_f_y", "grad_g", "grad_g_x", "grad_g_y", "hvp_g_yy", "jvp_g_xy", "value_f", "value_g",
)  # fmt: skip
ROW = {query: row for row, query in enumerate(QUERIES)}  # a query's place in the books of passes, calls and samples
