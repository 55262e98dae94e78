"""Adapters: one LoRA for two tasks that want different answers to the same tokens.

A small Llama is trained to repeat its input. Then it is frozen, and adapters of rank 4 (PEFT) learn
two tasks at once: the first token of a line says whether every token is to be answered by its
successor or by its predecessor. The loss of the first task is a sum over the line, that of the
second a mean, as happens when losses come from different code. Only adapters require a gradient, so
the rows of the Jacobian are as short as they are: the same lines work for a large model.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from peft import LoraConfig, get_peft_model
from study import Results, Setting, arguments, choose, plot_curves, print_table, run_all
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from examples.lab.figure import new_figure, save_figure
from lightning_jd import backward
from lightning_jd.aggregators import Constant, UPGrad

TOKENS, LENGTH, BATCH, POINTS = 16, 8, 32, 10
WEIGHTS = [1.0, 3.0, 10.0, 30.0]  # of the second loss, with 1 for the first
METHODS = {
    "sum": lambda weight: Constant([1.0, weight]),
    "UPGrad": lambda _: UPGrad(),
}
TASKS = {
    "successor": lambda tokens: (tokens + 1) % TOKENS,
    "predecessor": lambda tokens: (tokens - 1) % TOKENS,
}


def answers(model: nn.Module, task: int, tokens: Tensor) -> Tensor:
    """Logits (batch, length, tokens) after a first token that names the task."""
    mark = torch.full((len(tokens), 1), TOKENS + task)
    logits = model(input_ids=torch.cat([mark, tokens], dim=1), use_cache=False).logits
    return logits[:, 1:, :TOKENS].transpose(1, 2)


@cache
def pretrained(seed: int, steps: int) -> dict[str, Tensor]:
    """A model that repeats what it reads, whatever its first token is."""
    torch.manual_seed(seed)
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        tokens = torch.randint(TOKENS, (BATCH, LENGTH))
        optimizer.zero_grad()
        cross_entropy(answers(model, step % 2, tokens), tokens).backward()
        optimizer.step()
    return model.state_dict()


def new_model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=TOKENS + 2, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=LENGTH + 1,
        )
    )  # fmt: skip


def accuracies(model: nn.Module) -> list[float]:
    tokens = torch.randint(TOKENS, (500, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = [answers(model, task, tokens).argmax(dim=1) for task in range(len(TASKS))]
    wanted = [answer(tokens) for answer in TASKS.values()]
    pairs = zip(found, wanted, strict=True)
    return [100 * (a == b).float().mean().item() for a, b in pairs]


def train(setting: Setting, seed: int, steps: int) -> dict[str, Any]:
    model = new_model()
    model.load_state_dict(pretrained(seed, steps))
    torch.manual_seed(seed)
    modules = ["q_proj", "v_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=modules, lora_dropout=0.0))
    optimizer = torch.optim.Adam((p for p in adapted.parameters() if p.requires_grad), lr=1e-2)
    method, curve = METHODS[setting.method](setting.value), []
    for step in range(steps):
        losses = {}
        for task, (name, answer) in enumerate(TASKS.items()):
            tokens = torch.randint(TOKENS, (BATCH, LENGTH))
            loss = cross_entropy(answers(adapted, task, tokens), answer(tokens))
            losses[name] = loss if task else loss * LENGTH
        optimizer.zero_grad()
        backward(losses, adapted, method)
        optimizer.step()
        if (step + 1) * POINTS % steps < POINTS:
            curve.append(min(accuracies(adapted)))
    first, second = accuracies(adapted)
    area = sum(curve) / len(curve)
    found = {"first": first, "second": second, "worst": min(first, second)}
    return {**found, "area": area, "score": area, "curve": curve}


def draw(results: Results, steps: int) -> Figure:
    figure = new_figure(6.5, 3.8, "One LoRA, two tasks: accuracy of the worse one")
    axis = figure.subplots()
    plot_curves(axis, results, "curve", steps)
    axis.set(xlabel="step", ylabel="token accuracy in %")
    return figure


def publish(results: Results, folder: Path, steps: int) -> None:
    columns = {
        "area": "worse task over the run, %",
        "worst": "worse task at the end, %",
        "first": "successor, %",
        "second": "predecessor, %",
    }
    tuned = choose(
        {Setting(s.problem, "tuned sum", s.value): runs for s, runs in results.items()
         if s.method == "sum"}, "score",
    )  # fmt: skip
    plain = {s: runs for s, runs in results.items() if s.method == "UPGrad" or s.value == 1.0}
    shown = {**plain, **tuned}
    print_table(shown, columns, folder, tuned="weight")
    save_figure(draw(shown, steps), folder / "adapters.png")


if __name__ == "__main__":
    options = arguments(__doc__, steps=150)
    sweep = [Setting("LoRA", "sum", weight) for weight in WEIGHTS]
    publish(
        run_all(train, [*sweep, Setting("LoRA", "UPGrad")], options), options.output, options.steps
    )
