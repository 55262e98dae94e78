"""Continual learning: five pairs of digits, one after the other, without forgetting the first.

Split MNIST with one head: is a digit even or odd? The pairs 0/1, 2/3, ..., 8/9 come one after the
other, and of each a few images are remembered. GEM is ``Primary``: the loss of the present pair
leads, and the losses on what is remembered may not grow. Against it: SGD without a memory, replay
(the sum, with a tuned weight of the memory), and UPGrad on the same objectives.
"""

from functools import cache
from itertools import product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from study import Results, Setting, arguments, choose, plot_curves, print_table, run_all
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from examples.lab.data import load
from examples.lab.figure import new_figure, save_figure
from lightning_jd import backward
from lightning_jd.aggregators import Aggregator, Constant, Primary, UPGrad

PAIRS, BATCH, REMEMBERED = 5, 32, 50
RATES, REPLAY, MARGINS = [0.01, 0.03, 0.1, 0.3], [0.3, 1.0, 3.0, 10.0], [0.0, 0.5, 1.0]
METHODS = {
    "SGD": [f"lr {rate}" for rate in [0.001, 0.003, *RATES]],
    "replay": [f"lr {rate}, weight {weight}" for rate, weight in product(RATES, REPLAY)],
    "GEM": [f"lr {rate}, margin {margin}" for rate, margin in product(RATES, MARGINS)],
    "UPGrad": [f"lr {rate}" for rate in [*RATES, 1.0]],
}


@cache
def pairs(seed: int, size: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """For each part of the data, the images and parities of each pair."""
    images, labels = MNIST.images.flatten(start_dim=1), MNIST.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {"train": [], "validation": [], "test": []}
    for pair in range(PAIRS):
        chosen = order[labels[order] // 2 == pair]
        sizes = [size, min(1000, len(chosen) // 5), min(2000, len(chosen) // 5)]
        for part, index in zip(parts.values(), chosen[: sum(sizes)].split(sizes), strict=True):
            part.append((images[index].float() / 255, labels[index] % 2))
    return parts


def aggregator(method: str, value: str, old: int) -> Aggregator | str:
    number = float(value.split()[-1])
    if method == "replay":
        return Constant([1.0] + [number / max(old, 1)] * old)
    return {"SGD": "sum", "GEM": Primary("present", number), "UPGrad": UPGrad()}[method]


def accuracies(network: nn.Module, part: list[tuple[Tensor, Tensor]]) -> list[float]:
    with torch.no_grad():
        return [(network(x).argmax(dim=1) == y).float().mean().item() for x, y in part]


def train(setting: Setting, seed: int, steps: int) -> dict[str, float | list[float]]:
    data = pairs(seed, size=steps * BATCH)
    network = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 2))
    rate = float(setting.value.split(",")[0].split()[-1])
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    memory, history = [], []
    for x, y in data["train"]:
        method = aggregator(setting.method, setting.value, len(memory))
        for batch, target in zip(x.split(BATCH), y.split(BATCH), strict=True):
            losses = {"present": cross_entropy(network(batch), target)}
            if setting.method != "SGD":
                for old, (seen, answers) in enumerate(memory):
                    losses[f"pair {old}"] = cross_entropy(network(seen), answers)
            optimizer.zero_grad()
            backward(losses, network, method)
            optimizer.step()
        memory.append((x[:REMEMBERED], y[:REMEMBERED]))
        history.append(accuracies(network, data["test"]))
    learned = [history[pair][pair] for pair in range(PAIRS)]
    forgotten = [then - now for then, now in zip(learned[:-1], history[-1][:-1], strict=True)]
    validation = accuracies(network, data["validation"])
    return {
        "accuracy": 100 * sum(history[-1]) / PAIRS,
        "worst": 100 * min(history[-1]),
        "forgetting": 100 * sum(forgotten) / len(forgotten),
        "learned": 100 * sum(learned) / PAIRS,
        "score": sum(validation) / PAIRS,
        "seen": [100 * sum(row[: i + 1]) / (i + 1) for i, row in enumerate(history)],
        "first": [100 * row[0] for row in history],
    }


def draw(results: Results) -> Figure:
    figure = new_figure(10, 3.8, f"Split MNIST: {REMEMBERED} images of each pair are remembered")
    panels = {"seen": "Mean accuracy on the pairs so far", "first": "Accuracy on the first pair"}
    for axis, (key, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        plot_curves(axis, results, key, PAIRS)
        axis.set(title=title, xlabel="pairs learned", ylabel="test accuracy in %")
        axis.set_xticks(range(1, PAIRS + 1))
    return figure


def publish(results: Results, folder: Path, steps: int) -> None:
    best = choose(results, "score")
    columns = {
        "accuracy": "final accuracy, %",
        "worst": "worst pair, %",
        "forgetting": "forgetting, points",
        "learned": "accuracy when learned, %",
    }
    print_table(best, columns, folder, tuned="chosen")
    save_figure(draw(best), folder / "continual.png")


if __name__ == "__main__":
    options = arguments(__doc__, steps=120, data="folder with the official files of MNIST")
    MNIST = load("mnist", options.data)
    settings = [Setting("split MNIST", name, v) for name, values in METHODS.items() for v in values]
    publish(run_all(train, settings, options), options.output, options.steps)
