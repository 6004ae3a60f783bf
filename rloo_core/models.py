"""Causal language models: made, loaded, given adapters, saved."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rloo_core.random_streams import seed_for
from rloo_core.settings import LoraSettings, ModelSettings, ScratchSettings
from rloo_core.tokenization import installed_package_directory


def scratch_model(shape: ScratchSettings, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A GPT-NeoX (Pythia) model with random weights.

    Args:
        shape: Its size.
        tokenizer: Gives the vocabulary and the special tokens.
        seed: Of the initial weights.
    """
    config = GPTNeoXConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.max_positions,
        initializer_range=shape.initializer_range,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": shape.rotary_fraction,
        },
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "initial weights"))
        return GPTNeoXForCausalLM(config)


def start_model(settings: ModelSettings, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """The model that SFT starts from: pretrained, from a GGUF file of an installed package, or new."""
    if settings.path is None and settings.gguf_package is None:
        return scratch_model(settings.scratch, tokenizer, seed)
    path = settings.path or installed_package_directory(str(settings.gguf_package))
    return load_causal_lm(path, tokenizer, revision=settings.revision, gguf_file=settings.gguf_file)


def load_causal_lm(
    path: str | Path, tokenizer: PreTrainedTokenizerBase, *, revision: str | None = None, gguf_file: str | None = None
) -> PreTrainedModel:
    """Load a causal language model in float32 with dropout off.

    Args:
        path: A Hugging Face directory or hub id. Weights are read from safetensors, or from `gguf_file`.
        tokenizer: The tokenizer it will be used with; the embedding grows where the tokenizer has more tokens.
        revision: Branch, tag or commit on the hub.
        gguf_file: Name of a GGUF file in the directory.
    """
    source = {"gguf_file": gguf_file} if gguf_file else {"use_safetensors": True}
    model: Any = AutoModelForCausalLM.from_pretrained(
        path, revision=revision or "main", dtype=torch.float32, trust_remote_code=False, **source
    )
    if gguf_file:  # the weights are float32 by now; without this mark they can be saved and trained like any others
        model.hf_quantizer.remove_quantization_config(model)
    fit_vocabulary(model, tokenizer)
    plain: PreTrainedModel = disable_dropout(model)
    return plain


def fit_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Grow the embedding to the tokenizer's size (new rows start at the mean) and agree on the pad token."""
    embedding: Any = model.get_input_embeddings()
    old = embedding.num_embeddings
    if len(tokenizer) > old:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            grown: Any = model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        grown.weight.data[old:] = grown.weight.data[:old].mean(0)
    model.config.pad_token_id = tokenizer.pad_token_id
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        generation.pad_token_id = tokenizer.pad_token_id


def disable_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """Set every dropout probability to zero, so that log-probs of the same tokens are the same numbers.

    Also in train mode, which gradient checkpointing asks for: OPT and Bloom keep probabilities as plain numbers,
    Falcon reads its config. A model that is saved afterwards says in its config that it has no dropout.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        _without_dropout(module)
    _without_dropout(model.config)
    return model.eval()


def _without_dropout(holder: object) -> None:
    """Set the probabilities that are attributes to zero: `attention_dropout`, `attn_pdrop`, `layerdrop`, ..."""
    for name, value in list(vars(holder).items()):
        if "drop" in name and isinstance(value, float):
            setattr(holder, name, 0.0)


def add_lora(model: PreTrainedModel, lora: LoraSettings, seed: int, task: str | None = "CAUSAL_LM") -> Any:
    """Give a model low-rank adapters and freeze the rest; rank 0 returns it as it is, all weights trainable.

    Args:
        model: A causal language model, or (`task=None`) the decoder below a head.
        lora: Rank, scale and which layers.
        seed: Of the adapters' weights.
        task: PEFT's task type.
    """
    if lora.rank == 0:
        return model
    targets: Any = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0, task_type=task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "adapter weights"))
        return get_peft_model(model, config)


def merge_lora(model: Any) -> Any:
    """The plain model with its adapters, if any, added into its weights."""
    return model.merge_and_unload() if isinstance(model, PeftModel) else model


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write an ordinary Hugging Face directory: safetensors, config, and the tokenizer beside them."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
