"""Language models of transformers, with and without the adapters of peft."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from examples.lab.gallery._case import (
    Batch,
    GalleryCase,
    Specimen,
    TaskLosses,
    always,
    three_labels,
    three_spans,
)

_VOCABULARY, _LENGTH = 256, 32
_NEEDS = ("transformers",)
_ROPE = "rotary angles, softmax or norms are computed in float32"
_GROUPED = "the product for groups of tokens has no kernel for float64"
#: Names of the sizes, as most configurations spell them.
_SIZES = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def cases() -> list[GalleryCase]:
    """The models of this file."""
    return [
        GalleryCase("llama-gqa", lambda m: _llama(m, 2), 16, 2.0, None, _NEEDS, casts=_ROPE),
        GalleryCase(
            "llama-gqa-lora",
            lambda m: _adapted(_llama(m, 2), "lora"),
            16,
            2.0,
            None,
            (*_NEEDS, "peft"),
            casts=_ROPE,
        ),
        GalleryCase(
            "llama-gqa-ia3",
            lambda m: _adapted(_llama(m, 2), "ia3"),
            16,
            2.0,
            None,
            (*_NEEDS, "peft"),
            casts=_ROPE,
        ),
        GalleryCase("llama-mha", lambda m: _llama(m, 4), 16, 1.6, None, _NEEDS, casts=_ROPE),
        GalleryCase("bert", _bert, 16, 1.6, None, _NEEDS),
        GalleryCase("gpt2", _gpt2, 16, 1.6, None, _NEEDS),
        GalleryCase("mixtral", _mixtral, 16, 3.0, None, _NEEDS, single=_GROUPED),
        GalleryCase("mixtral-eager", lambda m: _mixtral(m, "eager"), requires=_NEEDS, casts=_ROPE),
        GalleryCase("gemma", _gemma, requires=_NEEDS, casts=_ROPE),
        GalleryCase("distilbert", _distilbert, requires=_NEEDS),
        GalleryCase("t5", _t5, requires=_NEEDS, casts="norms are computed in float32"),
        GalleryCase("mamba", _mamba, requires=_NEEDS, casts="the state is kept in float32"),
    ]


def _tokens(m: int) -> torch.Tensor:
    return torch.randint(0, _VOCABULARY, (m, _LENGTH))


def _causal(model: nn.Module, batch: Batch) -> TaskLosses:
    tokens = batch["tokens"]
    scores = model(input_ids=tokens, use_cache=False).logits
    return three_spans(scores[:, :-1], tokens[:, 1:])


def _labelled(model: nn.Module, batch: Batch) -> TaskLosses:
    return three_labels(model(input_ids=batch["tokens"]).logits, batch["labels"])


def _language_model(model: nn.Module, m: int) -> Specimen:
    return Specimen(model.train(), always({"tokens": _tokens(m)}), _causal)


def _classifier(model: nn.Module, m: int) -> Specimen:
    batch = {"tokens": _tokens(m), "labels": torch.randint(0, 4, (m, 3))}
    return Specimen(model.train(), always(batch), _labelled)


def _llama(m: int, key_value_heads: int) -> Specimen:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_SIZES, num_key_value_heads=key_value_heads)
    return _language_model(LlamaForCausalLM(config), m)


def _adapted(specimen: Specimen, method: str) -> Specimen:
    from peft import IA3Config, LoraConfig, get_peft_model

    config: Any
    if method == "lora":
        config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    else:
        config = IA3Config(
            target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]
        )
    specimen.model = get_peft_model(specimen.model, config)
    with torch.no_grad():  # adapters begin at nothing or one: what is zero would hide an error
        for parameter in specimen.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return specimen


def _bert(m: int) -> Specimen:
    from transformers import BertConfig, BertForSequenceClassification

    return _classifier(BertForSequenceClassification(BertConfig(**_SIZES, num_labels=12)), m)


def _gpt2(m: int) -> Specimen:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=_VOCABULARY,
        n_positions=64,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _language_model(GPT2LMHeadModel(config), m)


def _mixtral(m: int, experts: str | None = None) -> Specimen:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        **_SIZES,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_implementation=experts,
    )
    return _language_model(MixtralForCausalLM(config), m)


def _gemma(m: int) -> Specimen:
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(**_SIZES, num_key_value_heads=1, head_dim=32)
    return _language_model(GemmaForCausalLM(config), m)


def _distilbert(m: int) -> Specimen:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=_VOCABULARY, dim=128, hidden_dim=256, n_layers=2, n_heads=4, num_labels=12
    )
    return _classifier(DistilBertForSequenceClassification(config), m)


def _t5(m: int) -> Specimen:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=_VOCABULARY,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    batch = {"tokens": _tokens(m), "answers": _tokens(m)[:, :12]}
    return Specimen(T5ForConditionalGeneration(config).train(), always(batch), _translated)


def _translated(model: nn.Module, batch: Batch) -> TaskLosses:
    tokens, answers = batch["tokens"], batch["answers"]
    scores = model(input_ids=tokens, decoder_input_ids=answers, use_cache=False).logits
    return three_spans(scores[:, :-1], answers[:, 1:])


def _mamba(m: int) -> Specimen:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=_VOCABULARY, hidden_size=64, state_size=8, num_hidden_layers=2, time_step_rank=8
    )
    return _language_model(MambaForCausalLM(config), m)
