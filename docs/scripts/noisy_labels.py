# %% [markdown]
# # Which labels are wrong?
# Somebody has labelled four hundred images of digits and got half of them wrong. Fifty other images have labels
# that were checked. Every image of the four hundred gets a weight, and the weights are learned such that a small CNN
# that is trained with them does well on the checked images:
#
# - x holds one number per image; its weight is sigmoid(x), between 0 and 1.
# - y is the CNN. The lower level g is its weighted loss on the four hundred images, the upper level f is its loss on
#   the checked ones.

# %%
import copy
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import bilevelbench


@dataclass(frozen=True)
class Outcome:
    """Test accuracies, and the mean weight of images with a right and with a wrong label."""

    ours: float
    baselines: dict[str, float]
    weight_if_right: float
    weight_if_wrong: float

    def sentence(self) -> str:
        name, best = max(self.baselines.items(), key=lambda item: item[1])
        verdict = "better" if self.ours > best else "no better"
        return f"Learned weights are {verdict} than the best of the others, {name}: {self.ours:.1%} against {best:.1%}."


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(256, 10))


def loss(net, images, labels, **how):
    return cross_entropy(net(images), labels, **how)


def decay(net):
    return 0.01 * sum(p.square().sum() for p in net.parameters())


# %% [markdown]
# ## What people do without weights
# Adam on a loss. With `checked` the network is the one of the epoch that did best on the checked images (early stopping).


# %%
def trained(net, rows, epochs, checked=None):
    optimizer, least, best = torch.optim.Adam(net.parameters(), lr=0.01), float("inf"), net
    for _ in range(epochs):
        optimizer.zero_grad()
        (loss(net, *rows) + decay(net)).backward()
        optimizer.step()
        if checked is not None and (now := float(loss(net, *checked).detach())) < least:
            least, best = now, copy.deepcopy(net)
    return best


# %% [markdown]
# ## The comparison
# A step of `aid` is ten steps of gradient descent on the CNN, ten products with its Hessian and one step of Adam on x.
# The Hessian of a network need not be positive definite, which conjugate gradients rely on: `richardson` solves the
# linear system by a few gradient steps. The others start from the same network and make as many gradient evaluations
# as `solve` has made calls of any kind.


# %%
def main(seed=0, images=400, checked_images=50, steps=50):
    torch.manual_seed(seed)
    data = load_digits()
    order = torch.randperm(len(data.target))
    pixels, truth = torch.tensor(data.images, dtype=torch.float32)[order, None], torch.tensor(data.target)[order]
    pixels = (pixels - pixels.mean()) / pixels.std()
    is_wrong = torch.rand(images) < 0.5
    labels = torch.where(is_wrong, truth[:images] + torch.randint(1, 10, (images,)), truth[:images]) % 10
    end = images + checked_images
    given, checked = (pixels[:images], labels), (pixels[images:end], truth[images:end])

    def g(x, net, batch):
        picture, label, which = batch
        return (x[which].sigmoid() * loss(net, picture, label, reduction="none")).mean() + decay(net)

    def f(x, net, batch):
        return loss(net, *batch)

    net = network(seed)
    solution = bilevelbench.solve(
        f, g, torch.zeros(images), net, "aid", solver="richardson", steps=steps, evaluate="never",
        data_f=checked, data_g=(*given, torch.arange(images)), outer_optimizer=lambda x: torch.optim.Adam(x, lr=0.3),
    )  # fmt: skip
    net.load_state_dict(solution.y)
    weights = solution.x.sigmoid()

    def accuracy(net):
        return float((net(pixels[end:]).argmax(1) == truth[end:]).float().mean())

    epochs = solution.counts["first_order"] + solution.counts["second_order"]
    everything = tuple(torch.cat(pair) for pair in zip(given, checked, strict=True))
    baselines = {
        "training on everything": accuracy(trained(network(seed), everything, epochs)),
        "early stopping": accuracy(trained(network(seed), given, epochs, checked)),
        "the checked images alone": accuracy(trained(network(seed), checked, epochs)),
    }
    outcome = Outcome(accuracy(net), baselines, float(weights[~is_wrong].mean()), float(weights[is_wrong].mean()))
    for name, value in {**baselines, "learned weights": outcome.ours}.items():
        print(f"{name:<26}{value:7.1%} of the test images, {epochs} gradient evaluations")
    print(outcome.sentence())
    draw(*given, weights, is_wrong)
    return outcome


# %% [markdown]
# ## The picture
# The images with the lowest and the highest weights, with the labels that were given to them; then all weights.


# %%
def draw(*tensors):
    pixels, labels, weights, is_wrong = (tensor.numpy() for tensor in tensors)
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subfigures(2, 1)
    order = weights.argsort()
    for axes, i in zip(above.subplots(2, 10).flat, [*order[:10].tolist(), *order[-10:].tolist()], strict=True):
        axes.imshow(pixels[i, 0], cmap="gray_r")
        axes.set_title(f"{labels[i]}?", color="tab:red" if is_wrong[i] else "tab:blue")
        axes.set_axis_off()
    above.suptitle("Lowest weights (above) and highest (below), with their given labels; red: wrong")
    axes = below.subplots()
    axes.hist([weights[~is_wrong], weights[is_wrong]], bins=20, label=["right", "wrong"], color=["tab:blue", "tab:red"])
    axes.set(xlabel="learned weight", ylabel="images")
    axes.legend(title="the given label is")
    figure.savefig("noisy_labels.png", dpi=120)
    return figure


# %%
if __name__ == "__main__":
    torch.set_num_threads(1)  # everything here is small, and the same on every machine this way
    main()
