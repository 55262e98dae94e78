"""Shares of data: four workers with different classes of CIFAR-10, perhaps a hostile one too.

Each worker has one objective, the loss on its own share, as with
``JacobianDescent(rows="ranks")`` on four processes; here one process plays them all. The classes
of a share are drawn from a Dirichlet distribution, so that shares disagree. The hostile worker
sends ten times the gradient of a loss with wrong labels. What counts is the accuracy on unseen
images of the worst honest share.
"""

from functools import cache
from pathlib import Path

import torch
from matplotlib.figure import Figure
from study import Results, Setting, arguments, choose, plot_curves, print_table, run_all
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

from examples.lab.data import load
from examples.lab.figure import new_figure, save_figure
from lightning_jd import backward
from lightning_jd.aggregators import Krum, Mean, TrimmedMean, UPGrad

WORKERS, BATCH, CONCENTRATION, STRENGTH = 4, 32, 0.3, 10.0
POINTS = 10  # of a curve
RATES = [0.05, 0.2, 0.5]
METHODS = {
    "mean": lambda: Mean(),
    "UPGrad": lambda: UPGrad(),
    "trimmed mean": lambda: TrimmedMean(trim=1),
    "Krum": lambda: Krum(n_byzantine=1),
    "multi-Krum": lambda: Krum(n_byzantine=1, n_selected=4),
}
CASES = {"4 honest": ["mean", "UPGrad"], "4 honest, 1 hostile": list(METHODS)}


@cache
def parts(seed: int) -> list[list[tuple[Tensor, Tensor]]]:
    """For each worker images and labels: for training (60%), validation and test (20% each)."""
    torch.manual_seed(seed)
    images = avg_pool2d(CIFAR.images.float() / 255, 2)  # 16 x 16 is enough here
    images = (images - images.mean(dim=(0, 2, 3), keepdim=True)) / images.std()
    owners = torch.empty_like(CIFAR.labels)
    for label in range(10):
        chances = torch.distributions.Dirichlet(torch.full((WORKERS,), CONCENTRATION)).sample()
        mine = CIFAR.labels == label
        owners[mine] = torch.multinomial(chances, int(mine.sum()), replacement=True)
    found = []
    for worker in range(WORKERS):
        index = (owners == worker).nonzero()[:, 0]
        index = index[torch.randperm(len(index))]
        sizes = [len(index) * 3 // 5, len(index) // 5]
        cuts = index.split([*sizes, len(index) - sum(sizes)])
        found.append([(images[cut], CIFAR.labels[cut]) for cut in cuts])
    return found


def accuracies(
    network: nn.Module, data: list[list[tuple[Tensor, Tensor]]], part: int
) -> list[float]:
    with torch.no_grad():
        pairs = [share[part] for share in data]
        return [(network(x).argmax(dim=1) == y).float().mean().item() for x, y in pairs]


def train(setting: Setting, seed: int, steps: int) -> dict[str, float | list[float]]:
    data = parts(seed)
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), lr=setting.value)
    method, curve = METHODS[setting.method](), []
    for step in range(steps):
        losses = {}
        for worker, ((x, y), *_) in enumerate(data):
            batch = torch.randint(len(x), (BATCH,))
            losses[f"worker {worker}"] = cross_entropy(network(x[batch]), y[batch])
        if "hostile" in setting.problem:  # it knows the images of the first share
            x, y = data[0][0]
            batch = torch.randint(len(x), (BATCH,))
            wrong = cross_entropy(network(x[batch]), 9 - y[batch])
            losses["hostile"] = STRENGTH * wrong
        optimizer.zero_grad()
        backward(losses, network, method)
        optimizer.step()
        if (step + 1) * POINTS % steps < POINTS:
            curve.append(100 * min(accuracies(network, data, part=2)))
    honest = accuracies(network, data, part=2)
    return {
        "worst": 100 * min(honest),
        "mean": 100 * sum(honest) / WORKERS,
        "score": min(accuracies(network, data, part=1)),
        "curve": curve,
    }


def draw(results: Results, steps: int) -> Figure:
    figure = new_figure(10, 3.8, "Accuracy on unseen images of the worst of four shares")
    for axis, case in zip(figure.subplots(1, 2, sharey=True), CASES, strict=True):
        here = {setting: runs for setting, runs in results.items() if setting.problem == case}
        plot_curves(axis, here, "curve", steps)
        axis.set(title=case, xlabel="step", ylabel="accuracy in %")
    return figure


def publish(results: Results, folder: Path, steps: int) -> None:
    best = choose(results, "score")
    columns = {"worst": "worst share, %", "mean": "mean of the shares, %"}
    print_table(best, columns, folder, tuned="learning rate")
    save_figure(draw(best, steps), folder / "shares.png")


if __name__ == "__main__":
    options = arguments(__doc__, steps=120, data="folder with the binary version of CIFAR-10")
    CIFAR = load("cifar10", options.data)
    settings = [
        Setting(case, name, rate)
        for case, names in CASES.items()
        for name in names
        for rate in RATES
    ]
    publish(run_all(train, settings, options), options.output, options.steps)
