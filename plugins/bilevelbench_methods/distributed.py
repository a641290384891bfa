"""Methods over agents: agent i holds f_i and g_i, and f and g are the means over m agents.

All agents keep equal copies of the iterates. A first-order method needs nothing but means of plain gradients, so over agents
it is the method itself, on the mean problem. With F2BA, where g_i,y is short for the y-gradient of g_i:

    K times:  V_i <- g_i,y(x, z);   U_i <- f_i,y(x, y)/lam + g_i,y(x, y)            agent i, on what it holds
              V, U <- means of V_i, U_i                                             one round, 2 dy numbers up and down
              z <- z - a_z V;   y <- y - a_y U
    D_i <- f_i,x(x, y) + lam (g_i,x(x, y) - g_i,x(x, z));   D <- mean of D_i        one round, dx numbers
    x <- x - eta_x D

That is K + 1 rounds and 2 K dy + dx numbers a step. Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel
Optimization with Fully First-Order Oracles", JMLR 2025, Algorithm 10. Implicit differentiation has no such luck: the mean of
J_i H_i⁻¹ f_i,y is not J H⁻¹ f_y. Calls, rounds and bytes are those of one agent.
"""

from __future__ import annotations

from typing import Literal, Self

from torch import Tensor

from bilevelbench import Constants, Distributed, Oracle
from bilevelbench_methods.implicit.aid import AID, Solver
from bilevelbench_methods.penalty.acc_f2ba import AccF2BA
from bilevelbench_methods.penalty.bome import BOME
from bilevelbench_methods.penalty.f2ba import F2BA
from bilevelbench_methods.penalty.f2bsa import F2BSA
from bilevelbench_methods.penalty.f2sa import F2SA
from bilevelbench_methods.penalty.pbgd import PBGD
from bilevelbench_methods.penalty.pf2ba import PF2BA


class DistF2BA(Distributed, F2BA):
    name = "dist_f2ba"
    title = "F²BA over agents"


class DistF2BSA(Distributed, F2BSA):
    """F2BSA over agents: f2bsa with means of the agents' mini-batch gradients, each of which draws its own.

    K + 1 rounds and 2 K dy + dx numbers a step, as dist_f2ba; the noise is that of batches which are m times as large.
    """

    name = "dist_f2bsa"
    title = "F²BSA over agents"


class DistPF2BA(Distributed, PF2BA):
    """PF2BA over agents: pf2ba with means of the agents' gradients; the kicks are drawn alike by all of them.

    K_t + 1 rounds and 2 K_t dy + dx numbers a step, as dist_f2ba.
    """

    name = "dist_pf2ba"
    title = "PF²BA over agents"


class DistAccF2BA(Distributed, AccF2BA):
    """AccF2BA over agents: acc_f2ba with means of the agents' gradients; all of them restart at once.

    K_t + 1 rounds and 2 K_t dy + dx numbers a step, as dist_f2ba.
    """

    name = "dist_acc_f2ba"
    title = "AccF²BA over agents"


class DistF2SA(Distributed, F2SA):
    """F2SA over agents: f2sa with means of the agents' gradients.

    T_in + 1 rounds and 2 T_in dy + dx numbers a step, as dist_f2ba.
    """

    name = "dist_f2sa"
    title = "F²SA over agents"


class DistPBGD(Distributed, PBGD):
    """PBGD over agents: pbgd with means of the agents' gradients.

    K rounds of dy numbers for the lower level and one of dx + dy: K + 1 rounds and (K + 1) dy + dx numbers a step.
    """

    name = "dist_pbgd"
    title = "V-PBGD over agents"


class DistBOME(Distributed, BOME):
    """BOME over agents: bome with means of the agents' gradients.

    K rounds of dy numbers for the lower level and one for f_x, f_y, qx and qy: K + 1 rounds and (K + 2) dy + 2 dx numbers a
    step. With `barrier = gap` one more round, of one number.
    """

    name = "dist_bome"
    title = "BOME over agents"


class DistAID(Distributed, AID):
    """AID over agents with a distributed linear solver: every product is averaged, so all solve H v = f_y with the mean H.

    D rounds for the lower level, one for f_y, one for each of the N products (one more for the first residual of a warm cg)
    and one for f_x - J v: D + N + 2 rounds and (D + N + 1) dy + dx numbers a step with richardson.
    """

    name = "dist_aid"
    title = "AID over agents"


class DistAIDLocal(Distributed, AID):
    """AID over agents who average hypergradients, each from a linear system of its own: the wrong point, for contrast.

        v_i <- N steps on H_i v_i = f_i,y(x, y);   x <- x - eta_x mean_i (f_i,x - J_i v_i)

    y is that of the mean problem, as in dist_aid. It saves the rounds of the solver, D + 1 rounds and D dy + dx numbers a
    step, and ends where mean_i (f_i,x - J_i H_i⁻¹ f_i,y) = 0, which is not grad phi = 0 unless agents are alike:
    |grad phi| stays away from zero in its curve. No cg: how many products it takes would differ between agents.
    """

    name = "dist_aid_local"
    title = "AID over agents, own systems"

    solver: Literal["richardson", "neumann"] = "richardson"
    """linear solver of each agent"""

    def agreed(self, local: Tensor, oracle: Oracle) -> Tensor:
        return local

    @classmethod
    def from_theory(cls, constants: Constants, eps: float, solver: Solver = "richardson") -> Self:
        return super().from_theory(constants, eps, solver)
