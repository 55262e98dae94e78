"""Embeddings, attention and recurrence: batch first, batch second, batch hidden."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.engines.zoo._registry import BATCH, Built, case, named, per_instance

STEPS, WIDTH = 4, 6


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 7, shape or (BATCH, STEPS))


@case
def embedding_with_padding() -> Built:
    table, head = nn.Embedding(7, WIDTH, padding_idx=2), nn.Linear(WIDTH, 2)
    return per_instance(head(table(tokens()))), named(table, head)


@case
def embedding_whose_first_entry_is_padding() -> Built:
    table, head = nn.Embedding(7, WIDTH, padding_idx=0), nn.Linear(WIDTH, 2)
    return per_instance(head(table(tokens()))), named(table, head)


@case
def embedding_of_single_tokens() -> Built:
    table = nn.Embedding(7, WIDTH)
    return per_instance(table(tokens(BATCH)).tanh()), named(table)


@case
def embedding_with_many_more_entries_than_tokens() -> Built:
    table, head = nn.Embedding(4000, WIDTH), nn.Linear(WIDTH, 2)
    return per_instance(head(table(torch.randint(0, 4000, (BATCH, STEPS))))), named(table, head)


@case
def embedding_scaled_by_frequency() -> Built:
    table = nn.Embedding(7, WIDTH, scale_grad_by_freq=True)
    return per_instance(table(tokens()).tanh()), named(table)


@case
def embedding_with_sparse_gradient() -> Built:
    table = nn.Embedding(7, WIDTH, sparse=True)
    return per_instance(table(tokens()).tanh()), named(table)


@case
def embedding_bag_of_means() -> Built:
    table, head = nn.EmbeddingBag(7, WIDTH, padding_idx=1), nn.Linear(WIDTH, 2)
    return per_instance(head(table(tokens()))), named(table, head)


@case
def embedding_bag_of_weighted_sums_with_offsets() -> Built:
    table = nn.EmbeddingBag(7, WIDTH, mode="sum")
    offsets = torch.tensor([0, 3, 4, 4, 9])
    weights = nn.Parameter(torch.randn(12))
    bags = table(tokens(12), offsets, per_sample_weights=weights)
    return per_instance(bags), [("weights", weights), *named(table)]


@case
def embedding_bag_of_maxima() -> Built:
    table = nn.EmbeddingBag(7, WIDTH, mode="max")
    return per_instance(table(tokens())), named(table)


@case
def attention_to_itself() -> Built:
    front, layer = nn.Linear(WIDTH, WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    x = front(torch.randn(BATCH, STEPS, WIDTH))
    return per_instance(layer(x, x, x)[0]), named(front, layer)


@case
def attention_to_other_sequences_of_other_width() -> Built:
    layer = nn.MultiheadAttention(WIDTH, 3, kdim=4, vdim=5, batch_first=True, add_bias_kv=True)
    front = nn.Linear(WIDTH, WIDTH)
    x = front(torch.randn(BATCH, STEPS, WIDTH))
    output, _ = layer(x, torch.randn(BATCH, 7, 4), torch.randn(BATCH, 7, 5), need_weights=False)
    return per_instance(output), named(front, layer)


@case
def attention_with_sequence_first() -> Built:
    front, layer = nn.Linear(WIDTH, WIDTH), nn.MultiheadAttention(WIDTH, 2)
    x = front(torch.randn(STEPS, BATCH, WIDTH))
    return per_instance(layer(x, x, x)[0].transpose(0, 1)), named(front, layer)


@case
def attention_with_padding_mask() -> Built:
    layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    x = torch.randn(BATCH, STEPS, WIDTH)
    mask = torch.arange(STEPS).expand(BATCH, STEPS) > torch.randint(1, STEPS, (BATCH, 1))
    return per_instance(layer(x, x, x, key_padding_mask=mask)[0]), named(layer)


@case
def attention_written_by_hand_with_fused_projection() -> Built:
    project, out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
    x = torch.randn(BATCH, STEPS, WIDTH)
    q, k, v = (y.unflatten(-1, (2, 3)).transpose(1, 2) for y in project(x).chunk(3, dim=-1))
    y = (
        nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        .transpose(1, 2)
        .flatten(2)
    )
    return per_instance(out(y)), named(project, out)


@case
def attention_across_the_batch() -> Built:
    layer = nn.MultiheadAttention(WIDTH, 2)
    x = torch.randn(BATCH, STEPS, WIDTH)  # read as sequences of length BATCH
    return per_instance(layer(x, x, x)[0]), named(layer)


@case
def transformer_encoder_with_dropout() -> Built:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.2, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return per_instance(model(torch.randn(BATCH, STEPS, WIDTH)).mean(1)), named(model)


@case
def transformer_decoder_with_sequence_first() -> Built:
    layer = nn.TransformerDecoderLayer(WIDTH, 2, 8, dropout=0.0, norm_first=True)
    memory = nn.Linear(WIDTH, WIDTH)
    x, context = torch.randn(STEPS, BATCH, WIDTH), memory(torch.randn(3, BATCH, WIDTH))
    return per_instance(layer(x, context).transpose(0, 1)), named(layer, memory)


@case
def lstm() -> Built:
    model, head = nn.LSTM(WIDTH, 3, batch_first=True), nn.Linear(3, 2)
    return per_instance(head(model(torch.randn(BATCH, STEPS, WIDTH))[0])), named(model, head)


@case
def lstm_in_both_directions_with_sequence_first() -> Built:
    model = nn.LSTM(WIDTH, 3, num_layers=2, dropout=0.3, bidirectional=True)
    _, (hidden, _) = model(torch.randn(STEPS, BATCH, WIDTH))
    return per_instance(hidden.transpose(0, 1)), named(model)


@case
def gru_on_packed_sequences() -> Built:
    model = nn.GRU(WIDTH, 3, batch_first=True)
    lengths = torch.tensor([4, 2, 3, 1, 4])
    packed = pack_padded_sequence(
        torch.randn(BATCH, STEPS, WIDTH), lengths, batch_first=True, enforce_sorted=False
    )
    output, _ = pad_packed_sequence(model(packed)[0], batch_first=True)
    return per_instance(output), named(model)


@case
def rnn_cell_unrolled() -> Built:
    cell, h = nn.GRUCell(WIDTH, 3), torch.zeros(BATCH, 3)
    for x in torch.randn(STEPS, BATCH, WIDTH):
        h = cell(x, h)
    return per_instance(h), named(cell)


@case
def tokens_of_all_instances_in_one_list() -> Built:
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1))
    owner = torch.tensor([0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4])  # lengths 3, 1, 2, 1, 4
    each = model(torch.randn(11, WIDTH)).square().squeeze(1)
    return torch.zeros(BATCH).index_add(0, owner, each), named(model)


@case
def frames_folded_into_the_batch() -> Built:
    frame, clip = nn.Conv2d(2, 3, 2), nn.Linear(27, 2)
    video = torch.randn(BATCH, STEPS, 2, 4, 4)
    features = frame(video.flatten(0, 1)).relu().flatten(1).view(BATCH, STEPS, -1)
    return per_instance(clip(features).mean(1)), named(frame, clip)


@case
def frames_folded_into_the_batch_time_first() -> Built:
    frame = nn.Conv2d(2, 3, 2)
    video = torch.randn(STEPS, BATCH, 2, 4, 4)
    return per_instance(frame(video.flatten(0, 1)).view(STEPS, BATCH, -1).mean(0)), named(frame)
