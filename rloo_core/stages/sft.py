"""SFT: a policy that writes like the demonstrations."""

from collections.abc import Mapping
from pathlib import Path

from rloo_core.algorithms.sft import SupervisedMethod
from rloo_core.attention import use_attention
from rloo_core.models import add_lora, merge_lora, save_model, start_model
from rloo_core.observer import Observer
from rloo_core.optimization import checkpoint_gradients
from rloo_core.settings import SftStageSettings
from rloo_core.stages.common import MODEL, check_context, given_completions, stage_tokenizer, steps_for, use_threads
from rloo_core.trainer import TrainingLoop, make_accelerator


def run(settings: SftStageSettings, inputs: Mapping[str, Path], out: Path, observer: Observer) -> dict[str, float]:
    """Train on `demonstrations`; leaves `model/`, which `AutoModelForCausalLM` loads.

    Returns:
        Metrics of the step whose weights are left (`sft.keep_best`, else the last one), and the number of rows.
    """
    use_threads(settings.compute)
    sft, chat = settings.sft, settings.model.chat_template
    tokenizer = stage_tokenizer(inputs)
    accelerator = make_accelerator(settings.compute)
    start = start_model(settings.model, tokenizer, sft.seed).to(accelerator.device)
    use_attention(start, settings.compute.attention)
    splits = {
        split: given_completions(inputs, "demonstrations", split, ["completion"], tokenizer, chat, settings.compute)
        for split in ("train", "validation")
    }
    check_context(start, max(part.longest_row() for part in splits.values()), "data.max_total_tokens")
    if settings.compute.gradient_checkpointing:
        checkpoint_gradients(start)
    model = add_lora(start, settings.model.lora, sft.seed)
    steps = steps_for(sft.epochs, len(splits["train"]), sft.batch_size)
    loop = TrainingLoop(accelerator, model, sft, steps, out, observer)
    loop.run(
        SupervisedMethod(loop.model, splits["train"], splits["validation"], sft.batch_size, sft.seed, loop.processes)
    )
    summary = loop.take_best()
    if loop.accelerator.is_main_process:
        save_model(merge_lora(loop.accelerator.unwrap_model(loop.model)), tokenizer, out / MODEL)
    return {**summary, "train/rows": len(splits["train"])}
