/* AID, F2BA, F2BA+ and AccF2BA on the two forms of `washboard`, as plain loops over numbers: a second program for the same
   formulas, a few hundred times as fast as one that knows nothing of the problem. `washboard.py` compiles and calls it.

   Each function returns the first T for which the mean of |grad phi| over the first T points is at most eps, and 0 where that is
   more than `most` or the run diverges. mu = 1/kappa, w is the width of a ripple, q the power of the tail, x1 the start. */

#include <math.h>

static double tail(double u, double q) { return -exp(-0.5 * q * log1p(u * u)); }

/* g_y in the second coordinate; in the first it is y1 - x1 */
static double pull(double y2, double x2, double mu, double w) { return 1.5 * mu * y2 - x2 - 0.5 * mu * w * cos(y2 / w); }

static double size_of_grad_phi(double x1, double x2, double mu, double w, double q) {
    double s = x2 / (mu * w), u = s / 1.5;
    for (int i = 0; i < 6; i++) u -= (1.5 * u - 0.5 * cos(u) - s) / (1.5 + 0.5 * sin(u));
    return hypot(tail(x1, q), -sin(u) / (3 * mu * (1.5 + 0.5 * sin(u))));
}

static int lost(double x1, double x2) { return !(fabs(x1) < 1e12 && fabs(x2) < 1e12); }

long aid(double mu, double w, double q, long D, long N, double a, double eta, double x1, double eps, long most) {
    double x2 = (1.5 * M_PI + 0.8) * mu * w, y1 = 0, y2 = M_PI * w, v1 = 0, v2 = 0, sum = 0;
    for (long t = 1; t <= most && !lost(x1, x2); t++) {
        sum += size_of_grad_phi(x1, x2, mu, w, q);
        if (sum / t <= eps) return t;
        for (long k = 0; k < D; k++) { y1 -= a * (y1 - x1); y2 -= a * pull(y2, x2, mu, w); }
        double h = 1.5 * mu + 0.5 * mu * sin(y2 / w), f1 = tail(y1, q);
        for (long k = 0; k < N; k++) { v1 -= a * (v1 - f1); v2 -= a * (h * v2 - 1); }
        x1 -= eta * v1;
        x2 -= eta * (v2 - 1 / (1.5 * mu));
    }
    return 0;
}

/* theta = 1: no momentum of x. beta = 0: none of y and z. A coordinate whose steps have come to rest makes no more of them.
   The points of an accelerated run are those at which it has just looked ahead: the start counts twice. */
long f2ba(double mu, double w, double q, long K, double lam, double a, double beta, double eta, double theta, double x1,
          double eps, long most) {
    double x2 = (1.5 * M_PI + 0.8) * mu * w, p1 = x1, p2 = x2, sum = 0;
    double y1 = 0, y2 = M_PI * w, z1 = y1, z2 = y2, w1 = x1, w2 = x2;
    for (long t = 1; t <= most && !lost(x1, x2); t++) {
        sum += theta < 1 ? size_of_grad_phi(w1, w2, mu, w, q) : size_of_grad_phi(x1, x2, mu, w, q);
        if (sum / t <= eps) return t;
        w1 = x1 + (1 - theta) * (x1 - p1);
        w2 = x2 + (1 - theta) * (x2 - p2);
        double y1_last = y1, y2_last = y2, z1_last = z1, z2_last = z2;
        int at_rest = 0;
        for (long k = 0; k < K; k++) {
            double b2 = y2 + beta * (y2 - y2_last), c2 = z2 + beta * (z2 - z2_last);
            y2_last = y2; z2_last = z2;
            y2 = b2 - a * (1 / lam + pull(b2, w2, mu, w));
            z2 = c2 - a * pull(c2, w2, mu, w);
            if (at_rest) continue;
            double b1 = y1 + beta * (y1 - y1_last), c1 = z1 + beta * (z1 - z1_last);
            y1_last = y1; z1_last = z1;
            y1 = b1 - a * (tail(b1, q) / lam + b1 - w1);
            z1 = c1 - a * (c1 - w1);
            at_rest = beta == 0 && y1 == y1_last && z1 == z1_last;
        }
        p1 = x1; p2 = x2;
        x1 = w1 - eta * lam * (z1 - y1);
        x2 = w2 - eta * (lam * (z2 - y2) - 1 / (1.5 * mu));
    }
    return 0;
}
