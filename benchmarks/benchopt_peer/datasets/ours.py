"""The terms that `quadratic_sum` draws, so that both sides have the same problem."""

from benchopt import BaseDataset
from bilevelbench_problems import QuadraticSum


class Dataset(BaseDataset):
    name = "ours"

    def get_data(self):
        g, f, x0, y0 = QuadraticSum(dim_x=20, dim_y=10, n=256, m=256).draw()
        lower, upper = ([getattr(t, name).numpy() for name in "abpqcd"] for t in (g, f))
        return {"lower": lower, "upper": upper, "x0": x0[0].numpy(), "y0": y0[0].numpy()}
