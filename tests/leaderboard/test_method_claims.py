"""The page of a method tells a claim that is in no table of the paper."""

from __future__ import annotations

from leaderboard_data import make_results

from bilevelbench import Claim
from bilevelbench.leaderboard.build import write_site
from bilevelbench.leaderboard.collect import Material

SUM = Claim(
    setting="finite_sum", oracle="HVP", eps_exp=2, n_exp=0.5, source="other paper", reference="Somebody 2024",
    mean_squared_smooth=True,
)  # fmt: skip


def test_the_page_of_a_method_shows_it(tmp_path) -> None:
    results = make_results({"gd": (3, 0, 1.0), "slow": (3, 0, 0.4)}, {"bowl": {}}, seeds=2)
    facts = {"methods": {"gd": {"family": "implicit", "oracle": "HVP", "text": "GD.", "claims": [vars(SUM)]}}}
    write_site(Material({"default": results}, [], facts, []), tmp_path)
    page = (tmp_path / "method" / "gd.html").read_text("utf-8").split('id="claims"')[1].split("</table>")[0]
    cells = [cell.split("</td>")[0].split(">")[-1] for cell in page.split("<td")[1:]]
    assert cells == [
        "–", "finite-sum", "HVP", "2, other paper", "0.5, other paper", "–", "–", "Somebody 2024",
        "for mean-squared smooth samples",
    ]  # fmt: skip
