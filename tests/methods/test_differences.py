"""HJFBiO and FdeHBO: iterates against plain numpy, what differences do to noise, the ball, packs, presets and bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from helpers import alone, assert_same, iterates, of, packed, plugins, prepared, states_of, trial
from plain_problems import Wavy
from twins_soba import Affine as AffineWorld
from twins_soba import ByDifferences, Sums, TinySum, srmba

from bilevelbench import Additive, Affine, Algorithm, Constants, Instance, InvalidInput, bound, estimated
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.torch_state import default_dtype
from bilevelbench.plan.spec_text import parse_spec

STEPS = 20
SIGMA = {"f": 0.6, "g": 0.4, "h": 0.5}
EXACT = {"f": 0.0, "g": 0.0, "h": 0.0}
H = 1e-2  # longer than the default: the difference is then not the derivative, and rounding is not seen


def method(text: str) -> Algorithm:
    (spec,) = parse_spec(text)
    return make(registry().algorithm(spec.name), spec.params)


def wavy(noise=None) -> Instance:
    instance = Wavy(analytic=True).build()
    if noise is not None:
        instance.noise = noise
    return instance


def tiny() -> Instance:
    with default_dtype(torch.float64):
        return TinySum().build()


def agree(text, instance, twin):
    got = iterates(method(text), instance, STEPS)
    for (x, y), (x_, y_) in zip(got, itertools.islice(twin, STEPS + 1), strict=True):
        np.testing.assert_allclose(x, x_.astype(float), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(y, y_.astype(float), rtol=1e-10, atol=1e-10)
    assert np.linalg.norm(got[-1][0] - got[0][0]) > 1e-2


@pytest.mark.parametrize(("more", "radius"), [("", math.inf), (",radius=0.3", 0.3)])
def test_hjfbio_makes_the_iterates_of_the_specification(more, radius):
    """One direction without memory: STORM with weight 1."""
    world = ByDifferences(AffineWorld(Wavy().plain(), EXACT), H)
    twin = srmba(world, a=0.2, b=0.1, power=0, B=1, w=1.0, radius=radius)
    agree(f"hjfbio[a=0.2,b=0.1,difference={H}{more}]", wavy(), twin)


@pytest.mark.parametrize(("more", "radius"), [("", math.inf), (",radius=0.3", 0.3)])
def test_fdehbo_makes_the_iterates_of_the_specification(more, radius):
    text = f"fdehbo[a=0.2,b=0.1,batch=4,difference={H}{more}]"
    noisy = ByDifferences(AffineWorld(Wavy().plain(), SIGMA), H)
    twin = srmba(noisy, a=0.2, b=0.1, power=1 / 3, B=4, w=1.0, radius=radius)
    agree(text, wavy(Affine(SIGMA["f"], SIGMA["g"], SIGMA["h"])), twin)
    of_sum = srmba(ByDifferences(Sums(TinySum()), H), a=0.2, b=0.1, power=1 / 3, B=4, w=1.0, radius=radius)
    agree(text, tiny(), of_sum)


def direction_of_v(text, noise):
    """(the v after two steps of the method): H v of its first v, whose y and x are those of one step."""
    pack = prepared(method(text), wavy(noise))
    return states_of(pack, 2)[-1].v


def test_additive_noise_cancels_in_a_difference_and_affine_noise_does_not():
    """The same seed, so the same noise of gradients: only that of products differs."""
    of = {h: direction_of_v("srmba[a=0.2,b=0.1,batch=1]", Additive(0.6, 0.4, h)) for h in (0.0, 0.9)}
    mine = {h: direction_of_v("fdehbo[a=0.2,b=0.1,batch=1]", Additive(0.6, 0.4, h)) for h in (0.0, 0.9)}
    assert torch.equal(mine[0.0], mine[0.9])
    assert not torch.allclose(of[0.0], of[0.9], rtol=1e-3)
    torch.testing.assert_close(mine[0.0], of[0.0], rtol=1e-7, atol=1e-7)
    affine = {h: direction_of_v("fdehbo[a=0.2,b=0.1,batch=1]", Affine(0.6, 0.4, h)) for h in (0.0, 0.9)}
    assert not torch.allclose(affine[0.0], affine[0.9], rtol=1e-3)


def test_hjfbio_reaches_what_its_differences_allow():
    """Rounding over the difference, 1e-11; not the 1e-6 of a forward difference."""
    instance = wavy()
    state = states_of(prepared(method("hjfbio[a=0.4,b=0.2]"), instance), 500)[-1]
    assert float(Evaluator(instance)(state.x, state.y).grad_phi) < 1e-9


@pytest.mark.parametrize("text", ["hjfbio", "fdehbo"])
def test_v_stays_in_the_ball(text):
    sizes = [float(s.v.norm()) for s in states_of(prepared(method(f"{text}[radius=0.2]"), wavy()), 30)]
    assert max(sizes) == pytest.approx(0.2)
    assert sizes[0] == 0


def test_default_ball_holds_the_solution_or_is_not_there():
    cls = registry().algorithm("hjfbio").value
    given = {"mu": 0.5, "L_gy": 2.0, "L_phi": 3.0}
    assert cls().resolve(Constants({**given, "C_f": bound(4)})).radius == 8
    assert cls().resolve(Constants({**given, "C_f": estimated(4)})).radius is None
    assert cls().resolve(Constants(given)).radius is None
    assert cls(radius=3).resolve(Constants({**given, "C_f": bound(4)})).radius == 3


@pytest.mark.whole
def test_packed_equals_alone_on_a_finite_sum():
    among = plugins(TinySum)
    trials = [
        trial(
            f"fdehbo[a={0.3 - 0.02 * i},b={0.2 - 0.01 * i},batch=4,w={0.5 + 0.1 * i},difference={0.1**i},radius={1 + i}]",
            "tiny_sum",
            steps=[12, 9, 15, 6, 14][i],
            seed=i,
            among=among,
        )
        for i in range(5)
    ]
    together, apart = packed(trials, among), alone(trials, among)
    assert_same(of(together, trials), of(apart, trials))
    assert together.runs.pack_lanes.iloc[0] > 1


def test_presets_have_the_powers_of_their_theorems():
    c = make(registry().problem("quadratic"), {"sigma_f": 1.0, "sigma_g": 0.5}).build().constants
    short, long = (registry().algorithm("fdehbo").value.from_horizon(c, T) for T in (2**15, 2**18))
    assert (long.a, long.b, long.w) == pytest.approx((short.a / 2, short.b / 2, short.w / 4))
    assert (long.power, long.batch) == (0, 1)
    coarse, fine = (registry().algorithm("hjfbio").value.from_rate(c, eps) for eps in (0.1, 0.01))
    assert coarse == fine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hjfbio[difference=0]", "difference = 0: input should be greater than 0"),
        ("fdehbo[difference=-1e-5]", "difference = -1e-05: input should be greater than 0"),
        ("hjfbio[radius=0]", "radius = 0: input should be greater than 0"),
        ("fdehbo[radius=-2]", "radius = -2: input should be greater than 0"),
    ],
)
def test_parameters_out_of_range_are_a_sentence(text, said):
    with pytest.raises(InvalidInput, match=said):
        method(text)


def test_difference_below_rounding_is_a_sentence():
    pack = prepared(method("hjfbio[difference=1e-16]"), wavy())
    with pytest.raises(
        InvalidInput, match=r"difference = 1e-16 is below rounding at \|y\| = .* choose a larger difference"
    ):
        states_of(pack, 1)
