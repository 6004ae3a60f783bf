"""Everything a stage reads, small enough that a stage runs in a second: tables, models, settings."""

from pathlib import Path
from random import Random

import torch
from torch import nn

from rloo_core.data.schema import SPLITS
from rloo_core.data.tables import read_table, table_path, write_table
from rloo_core.reward_models import new_reward_model, save_reward_model
from rloo_core.settings import (
    ComputeSettings,
    EvaluationSettings,
    EvaluationStageSettings,
    LlmJudgeSettings,
    LoraSettings,
    ModelSettings,
    PolicyStageSettings,
    RewardModelSettings,
    RewardModelStageSettings,
    RewardSettings,
    ScratchSettings,
    SftSettings,
    SftStageSettings,
)
from tests.rloo_core.algorithms.building import algorithm_settings
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

EOS = 1
LENGTHS = (30, 3, 7, 12)  # words of a prompt; the longest would show a truncation
SCRATCH = ScratchSettings(
    hidden_size=8, layers=1, heads=1, intermediate_size=8, max_positions=64, initializer_range=0.1, rotary_fraction=1.0
)
COMPUTE = ComputeSettings(
    device="cpu",
    processes=1,
    threads=1,
    precision="float32",
    max_tokens_per_batch=200,
    layout="padded",
    attention="auto",
    gradient_checkpointing=False,
    sampling_precision="float32",
)
TRAINING = {
    "seed": 0, "learning_rate": 0.01, "schedule": "constant", "warmup_fraction": 0.0, "weight_decay": 0.0,
    "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0, "eval_every": 1, "checkpoint_every": 0,
    "checkpoint_minutes": 60.0, "keep_checkpoints": 1, "keep_best": None,
}  # fmt: skip


LLM = LlmJudgeSettings(
    base_url="http://127.0.0.1:9/v1", model="judge", api_key_env="RLOO_TEST_KEY", template="tldr", temperature=0.0,
    max_tokens=50, max_tokens_name="max_tokens", concurrency=4, attempts=4, timeout_seconds=5.0,
    longest_wait_seconds=0.05, cache="judge", price_prompt=2.0, price_completion=8.0,
)  # fmt: skip


def words(count: int, *key: object) -> str:
    """Random words, the same for the same key; none begins with w2, the tiny tokenizer's unknown token."""
    random = Random("-".join(map(str, key)))
    return " ".join(f"w{random.randint(7, 19)}" for _ in range(count))


def ids(text: str) -> list[int]:
    """What the tiny tokenizer makes of words, by definition: the number of each."""
    return [int(word.removeprefix("w")) for word in text.split()]


def write_data(directory: Path) -> Path:
    """A data stage's output: four rows a table and split, no prompt twice; `split` is a column of the prompts.

    The test prompts carry `facts`, which says that a gold reward is known.
    Chosen completions begin with w5, rejected ones with w6, and are otherwise alike.
    """
    for split in SPLITS:
        rows = [(words(n, split, i), words(3 + i, split, i, "tail")) for i, n in enumerate(LENGTHS)]
        facts = {"facts": "-"} if split == "test" else {}
        tables = {
            "prompts": [{"prompt": p, "reference": t, "split": split} | facts for p, t in rows],
            "demonstrations": [{"prompt": f"w4 {p}", "completion": t} for p, t in rows],
            "preferences": [{"prompt": f"w3 {p}", "chosen": f"w5 {t}", "rejected": f"w6 {t}"} for p, t in rows],
        }
        for name, content in tables.items():
            write_table(table_path(directory, name, split), name, content)
    tiny_tokenizer().save_pretrained(directory / "tokenizer")
    return directory


def write_inputs(directory: Path) -> dict[str, Path]:
    """The outputs of all stages before the evaluation, their models random and different."""
    inputs = {name: directory / name for name in ("data", "sft", "reward_model", "policy")}
    write_data(inputs["data"])
    write_model(tiny_neox(seed=0), inputs["sft"])
    write_model(tiny_neox(seed=1), inputs["policy"])
    reward_model = new_reward_model(inputs["sft"] / "model", tiny_tokenizer(), seed=0)
    save_reward_model(reward_model, tiny_tokenizer(), inputs["reward_model"] / "model")
    return inputs


def write_model(model, directory: Path) -> Path:
    model.save_pretrained(directory / "model")
    return directory


def rows_of(inputs: dict[str, Path], table: str, split: str) -> list[dict]:
    return read_table(inputs["data"], table, split)


def sft_settings(start: Path, **changes) -> SftStageSettings:
    sft = SftSettings(**(TRAINING | {"epochs": 1.0, "batch_size": 2} | changes))
    return SftStageSettings(sft=sft, model=_model(path=str(start)), compute=COMPUTE)


def reward_model_settings(rank: int = 0, **changes) -> RewardModelStageSettings:
    values = TRAINING | {"enabled": True, "path": None, "epochs": 1.0, "batch_size": 2, "center": False}
    own = RewardModelSettings(**(values | changes))
    return RewardModelStageSettings(reward_model=own, model=_model(rank), compute=COMPUTE)


def policy_settings(
    rank: int = 0, layout: str = "padded", reward: str = "reward_model", **changes
) -> PolicyStageSettings:
    """Two steps of two prompts with two completions each."""
    values = TRAINING | {"temperature": 0.7} | changes
    compute = COMPUTE.model_copy(update={"layout": layout})
    terms = RewardSettings(terms=(reward,))
    return PolicyStageSettings(
        algorithm=algorithm_settings(**values), reward=terms, model=_model(rank), compute=compute
    )


def evaluation_settings(**changes) -> EvaluationStageSettings:
    values = {
        "seed": 0, "prompts": None, "temperature": 0.8, "max_new_tokens": 6, "stop": (), "completions": 1, "best_of": 0,
        "judge": "auto", "judges": (), "judge_decoding": "both", "samples": 2, "llm": LLM,
    }  # fmt: skip
    terms = RewardSettings(terms=("reward_model",))
    own = EvaluationSettings(**(values | changes))
    return EvaluationStageSettings(evaluation=own, reward=terms, model=_model(), compute=COMPUTE)


def _model(rank: int = 0, path: str | None = None) -> ModelSettings:
    lora = LoraSettings(rank=rank, alpha=8, target_modules="all-linear")
    return ModelSettings(
        path=path, revision=None, gguf_package=None, gguf_file=None, chat_template=False, scratch=SCRATCH, lora=lora
    )


class RowsSeen:
    """Every row of token ids that an embedding is given while this is open, without padding (id 0)."""

    def __enter__(self) -> set[tuple[int, ...]]:
        self.rows: set[tuple[int, ...]] = set()
        self.handle = torch.nn.modules.module.register_module_forward_pre_hook(self._look)
        return self.rows

    def _look(self, module, arguments) -> None:
        if isinstance(module, nn.Embedding):
            self.rows |= {tuple(i for i in row if i != 0) for row in arguments[0].tolist()}

    def __exit__(self, *error) -> None:
        self.handle.remove()
