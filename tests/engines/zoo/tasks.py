"""Several tasks: trunks, heads, and tasks that do not reach everything."""

import torch
from torch import nn

from tests.engines.zoo._registry import BATCH, Built, case, named, per_instance


def heads(width: int, count: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, 2) for _ in range(count))


@case
def tasks_with_trunk_and_heads() -> Built:
    trunk, tops = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh()), heads(6, 3)
    h = trunk(torch.randn(BATCH, 4))
    return {f"task{t}": per_instance(top(h)).mean() for t, top in enumerate(tops)}, named(
        trunk, tops
    )


@case
def tasks_with_convolutional_trunk() -> Built:
    trunk = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten())
    tops = heads(16, 3)
    h = trunk(torch.randn(BATCH, 2, 4, 4))
    return [per_instance(top(h)).mean() for top in tops], named(trunk, tops)


@case
def tasks_with_batch_norm_in_training() -> Built:
    trunk, tops = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()), heads(6, 2)
    h = trunk(torch.randn(BATCH, 4))
    return [per_instance(top(h)).mean() for top in tops], named(trunk, tops)


@case
def tasks_on_sequences_with_attention_and_norms() -> Built:
    trunk = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    tops = heads(4, 3)
    h = trunk(torch.randn(BATCH, 3, 4))
    return [per_instance(top(h)).mean() for top in tops], named(trunk, tops)


@case
def tasks_with_embedding_and_tied_weights() -> Built:
    table, trunk, tops = nn.Embedding(7, 4), nn.Linear(4, 4), heads(4, 2)
    h = trunk(trunk(table(torch.randint(0, 7, (BATCH, 3)))).tanh())
    return [per_instance(top(h)).mean() for top in tops], named(table, trunk, tops)


@case
def task_that_reaches_no_shared_parameter() -> Built:
    trunk, tops = nn.Linear(4, 4), heads(4, 2)
    x = torch.randn(BATCH, 4)
    losses = [per_instance(tops[0](trunk(x))).mean(), per_instance(tops[1](x)).mean()]
    return losses, named(trunk, tops)


@case
def tasks_at_different_depths() -> Built:
    first, second, tops = nn.Linear(4, 4), nn.Linear(4, 4), heads(4, 2)
    h = first(torch.randn(BATCH, 4)).tanh()
    losses = [per_instance(tops[0](h)).mean(), per_instance(tops[1](second(h))).sum()]
    return losses, named(first, second, tops)


@case
def tasks_on_different_batches() -> Built:
    trunk, tops = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), heads(4, 2)
    losses = [
        per_instance(top(trunk(torch.randn(b, 4)))).mean()
        for top, b in zip(tops, (3, 7), strict=True)
    ]
    return losses, named(trunk, tops)


@case
def tasks_stacked_into_one_vector() -> Built:
    trunk, tops = nn.Linear(4, 4), heads(4, 3)
    h = trunk(torch.randn(BATCH, 4)).tanh()
    return torch.stack([per_instance(top(h)).mean() for top in tops]), named(trunk, tops)


@case
def as_many_tasks_as_instances() -> Built:
    trunk, tops = nn.Linear(4, 4), heads(4, BATCH)
    h = trunk(torch.randn(BATCH, 4)).tanh()
    return [per_instance(top(h)).mean() for top in tops], named(trunk, tops)


@case
def more_tasks_than_features() -> Built:
    trunk, top = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 9)
    output = top(trunk(torch.randn(BATCH, 4)))
    return list(output.square().mean(0).unbind()), named(trunk, top)


@case
def the_same_loss_twice() -> Built:
    layer = nn.Linear(4, 3)
    loss = per_instance(layer(torch.randn(BATCH, 4))).mean()
    return [loss, loss, 2 * loss], named(layer)


@case
def adversarial_pair_of_losses() -> Built:
    maker, judge = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    fake = maker(torch.randn(BATCH, 2))
    losses = {
        "maker": -judge(fake).mean(),
        "judge": judge(fake.detach()).mean() - judge(torch.randn(BATCH, 4)).mean(),
    }
    return losses, named(maker, judge)


@case
def losses_with_learned_balance() -> Built:
    trunk, tops, balance = nn.Linear(4, 4), heads(4, 2), nn.Parameter(torch.zeros(2))
    h = trunk(torch.randn(BATCH, 4)).tanh()
    losses = [
        per_instance(top(h)).mean() * (-b).exp() + b for top, b in zip(tops, balance, strict=True)
    ]
    return losses, [*named(trunk, tops), ("balance", balance)]


@case
def an_instance_is_a_task_in_a_list() -> Built:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return list(per_instance(model(torch.randn(BATCH, 4))).unbind()), named(model)
