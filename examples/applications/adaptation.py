"""Adversarial domain adaptation: labels of MNIST, images of coloured digits without labels.

The target domain are digits blended with patches of CIFAR-10. A second head tells the domains
apart, and the encoder is to make that impossible: its gradient is reversed on the way. The usual
way adds both gradients with a tuned weight. Here label and domain are objectives of the encoder
(``select``), and the heads keep the gradients of their own losses: Primary lets the label lead,
UPGrad lets neither lose. Both get the same search for their weight of the domain.
"""

from functools import cache
from pathlib import Path

import torch
from matplotlib.figure import Figure
from study import Results, Setting, arguments, choose, plot_curves, print_table, run_all
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from examples.lab.data import load
from examples.lab.figure import new_figure, save_figure
from lightning_jd import backward
from lightning_jd.aggregators import Constant, Primary, UPGrad

BATCH, POINTS, WEIGHTS = 32, 10, [0.01, 0.03, 0.1, 0.3]
METHODS = {
    "source only": lambda _: Constant([1.0, 0.0]),
    "gradient reversal": lambda weight: Constant([1.0, weight]),
    "Primary": lambda weight: Primary("label", margin=weight),
    "UPGrad": lambda weight: UPGrad(preference={"label": 1.0, "domain": weight}),
}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(800, 64), nn.ReLU(),
        )  # fmt: skip
        self.label = nn.Linear(64, 10)
        self.domain = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))

    def losses(self, source: Tensor, labels: Tensor, target: Tensor) -> dict[str, Tensor]:
        features = self.encoder(torch.cat([source, target]))
        reversed_gradient = 2 * features.detach() - features  # the same values
        domains = torch.arange(2).repeat_interleave(len(source))
        return {
            "label": cross_entropy(self.label(features[: len(source)]), labels),
            "domain": cross_entropy(self.domain(reversed_gradient), domains),
        }


@cache
def domains(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Source; and of the target the images for training, for validation and for the test."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(MNIST.labels), generator=generator)[:16000]
    source, target, validation, test = order.tensor_split([len(order) * i // 8 for i in (3, 6, 7)])
    coloured = {"target": target, "validation": validation, "test": test}
    found = {"source": (white(source), MNIST.labels[source])}
    for name, index in coloured.items():  # the labels of the target are never used in training
        found[name] = (blend(white(index), generator), MNIST.labels[index])
    return found


def white(index: Tensor) -> Tensor:
    return MNIST.images[index].float().expand(-1, 3, -1, -1) / 255


def blend(digits: Tensor, generator: torch.Generator) -> Tensor:
    """Digits in front of patches of half their brightness."""
    index = torch.randint(len(CIFAR.labels), (len(digits),), generator=generator)
    patches = CIFAR.images[index, :, 2:30, 2:30].float() / 255
    return digits + (1 - digits) * patches / 2


def accuracy(network: Network, part: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return (
            100
            * (network.label(network.encoder(part[0])).argmax(1) == part[1]).float().mean().item()
        )


def train(setting: Setting, seed: int, steps: int) -> dict[str, float | list[float]]:
    data = domains(seed)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    method, curve = METHODS[setting.method](setting.value), []
    (source, labels), (target, _) = data["source"], data["target"]
    for step in range(steps):
        here, there = torch.randint(len(source), (2, BATCH))
        optimizer.zero_grad()
        losses = network.losses(source[here], labels[here], target[there])
        backward(losses, network, method, params="encoder.*")
        optimizer.step()
        if (step + 1) * POINTS % steps < POINTS:
            curve.append(accuracy(network, data["test"]))
    return {
        "target": curve[-1],
        "source": accuracy(network, (source, labels)),
        "score": accuracy(network, data["validation"]),
        "curve": curve,
    }


def draw(results: Results, steps: int) -> Figure:
    figure = new_figure(10, 3.8, "MNIST to coloured MNIST; mean and standard error")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    plot_curves(left, results, "curve", steps)
    left.set(xlabel="step", ylabel="accuracy on the target in %")
    images = domains(0)["test"][0][:15].reshape(3, 5, 3, 28, 28).permute(0, 3, 1, 4, 2)
    right.imshow(images.reshape(84, 140, 3).numpy())
    right.set(title="The target domain", xticks=[], yticks=[])
    return figure


def publish(results: Results, folder: Path, steps: int) -> None:
    best = choose(results, "score")
    columns = {"target": "accuracy on the target, %", "source": "on the source, %"}
    print_table(best, columns, folder, tuned="weight")
    save_figure(draw(best, steps), folder / "adaptation.png")


if __name__ == "__main__":
    text = "folder with the folders mnist and cifar10 of official files"
    options = arguments(__doc__, steps=250, data=text)
    MNIST, CIFAR = (load(name, options.data / name) for name in ("mnist", "cifar10"))
    settings = [
        Setting("MNIST to coloured", method, value)
        for method in METHODS
        for value in (["-"] if method == "source only" else WEIGHTS)
    ]
    publish(run_all(train, settings, options), options.output, options.steps)
