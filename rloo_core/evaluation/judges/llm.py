"""A language model as judge, over the OpenAI-compatible chat-completions interface."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import openai
import tenacity

from rloo_core.evaluation.judges.base import JudgeError, Question, Verdict
from rloo_core.evaluation.judges.cache import Answer, AnswerCache, content_key
from rloo_core.settings import LlmJudgeSettings

TEMPLATES = Path(__file__).parent / "templates"
SYSTEM_ENDS = "\n---\n"  # in a template: the system message stands before it
CHARACTERS_A_TOKEN = 4.0  # of English text, for estimates
HOPELESS = 3  # times `concurrency` questions without an answer and none with one: the server is not there
VERDICTS = {"a": 1.0, "b": 0.0, "tie": 0.5}
PREFERRED = re.compile(r"^\W*preferred\W+(.+?)\W*$", re.IGNORECASE | re.MULTILINE)


class Malformed(Exception):
    """An answer that does not speak the interface; asked again."""


class Refused(Exception):
    """The server will not answer any question: a wrong key, model or address."""


@dataclass(frozen=True)
class Forecast:
    """What a set of questions would take: an estimate, with every reply as long as it may be."""

    questions: int
    cached: int
    prompt_tokens: int
    completion_tokens: int
    cost: float  # US dollars


class LlmJudge:
    """Asks a language model; answers are kept on disk, and asked for again only if their question changes.

    Args:
        settings: Address, model, prompt template, limits. The key is read from the environment variable it names.
        say: Told in one line what was asked and what was known.

    Raises:
        ValueError: If the template or the key is missing, before anything is asked.
    """

    name = "llm"

    def __init__(self, settings: LlmJudgeSettings, say: Callable[[str], None] = lambda line: None) -> None:
        self.settings = settings
        self.template = read_template(settings.template)
        self._key = _api_key(settings)
        self._say = say
        self._used: dict[str, Answer] = {}

    def __call__(self, questions: Sequence[Question]) -> list[Verdict]:
        """Ask what is not known yet, several questions at a time.

        Raises:
            JudgeError: If questions stay without an answer. All answers that came are kept: the same call asks the
                missing ones alone.
        """
        requests = [self._request(question) for question in questions]
        keys = [content_key(request) for request in requests]
        cache = AnswerCache(Path(self.settings.cache))
        try:
            known = {key: answer for key in set(keys) if (answer := cache.get(key)) is not None}
            missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in known}
            known |= self._ask_all(missing, cache)
        finally:
            cache.close()
        self._used |= known
        return [verdict_of(known[key].text) for key in keys]

    def usage(self) -> Mapping[str, float]:
        """Tokens and price of all answers used, whether asked for now or known: a resumed run says the same."""
        prompt = sum(answer.prompt_tokens for answer in self._used.values())
        completion = sum(answer.completion_tokens for answer in self._used.values())
        return {
            "answers": float(len(self._used)),
            "prompt_tokens": float(prompt),
            "completion_tokens": float(completion),
            "cost": self._price(prompt, completion),
        }

    def forecast(self, questions: Sequence[Question]) -> Forecast:
        """What asking would take; asks nothing."""
        unique = {content_key(request): request for request in map(self._request, questions)}
        cache = AnswerCache(Path(self.settings.cache))
        missing = [request for key, request in unique.items() if cache.get(key) is None]
        cache.close()
        characters = sum(len(message["content"]) for request in missing for message in request["messages"])
        prompt, completion = round(characters / CHARACTERS_A_TOKEN), len(missing) * self.settings.max_tokens
        return Forecast(len(missing), len(unique) - len(missing), prompt, completion, self._price(prompt, completion))

    def _price(self, prompt_tokens: int, completion_tokens: int) -> float:
        own = self.settings
        return (prompt_tokens * own.price_prompt + completion_tokens * own.price_completion) / 1e6

    def _request(self, question: Question) -> dict[str, Any]:
        """Everything an answer depends on."""
        values = {"prompt": question.prompt, "first": question.first.strip(), "second": question.second.strip()}
        texts = [part.substitute(values) for part in self.template]
        roles = ("system", "user") if len(texts) == 2 else ("user",)
        own = self.settings
        return {
            "base_url": own.base_url,
            "model": own.model,
            "temperature": own.temperature,
            own.max_tokens_name: own.max_tokens,
            "messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)],
        }

    def _ask_all(self, missing: Mapping[str, Mapping[str, Any]], cache: AnswerCache) -> dict[str, Answer]:
        if not missing:
            return {}
        own = self.settings
        client = openai.OpenAI(api_key=self._key, base_url=own.base_url, timeout=own.timeout_seconds, max_retries=0)
        answers: dict[str, Answer] = {}
        failures: list[Exception] = []
        executor = ThreadPoolExecutor(own.concurrency, thread_name_prefix="judge")
        try:
            asked = {executor.submit(self._ask, client, key, r, cache): key for key, r in missing.items()}
            for future in as_completed(asked):
                self._collect(future, asked[future], answers, failures)
        except Refused as error:
            raise JudgeError(f"the judge {own.model} at {own.base_url or 'OpenAI'}: {self._clean(error)}") from None
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
            client.close()
        self._say(f"judge {own.model}: {len(answers)} answers asked for")
        if len(answers) < len(missing):
            raise JudgeError(
                f"{len(missing) - len(answers)} of {len(missing)} questions to the judge {own.model} have no answer "
                f"after {own.attempts} attempts each; the last error: {self._clean(failures[-1])}. The answers that "
                f"came are kept in {own.cache}: the same command asks the missing ones alone"
            )
        return answers

    def _collect(
        self, future: "Future[Answer]", key: str, answers: dict[str, Answer], failures: list[Exception]
    ) -> None:
        try:
            answers[key] = future.result()
        except Refused:
            raise
        except Exception as error:
            failures.append(error)
            if not answers and len(failures) >= HOPELESS * self.settings.concurrency:
                raise Refused(f"no answer to {len(failures)} questions; the last error: {error}") from error

    def _ask(self, client: Any, key: str, request: Mapping[str, Any], cache: AnswerCache) -> Answer:
        """One question, asked again while the server is busy or stammers; its answer is on disk when this returns."""
        own = self.settings
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(own.attempts),
            wait=lambda state: wait_seconds(state, own.longest_wait_seconds),
            retry=tenacity.retry_if_exception(_passes),
            reraise=True,
        )
        answer: Answer = retrying(_answer, client, _body(request))
        cache.put(key, request, answer)
        return answer

    def _clean(self, error: Exception) -> str:
        """An error's text without the key, which servers like to repeat."""
        return str(error).replace(self._key, "[key]")


def read_template(name: str) -> list[Template]:
    """A prompt template by name (a file of `templates/`) or by path: [user] or [system, user].

    Raises:
        ValueError: If there is none, or it lacks one of $prompt, $first and $second.
    """
    built_in = TEMPLATES / f"{name}.txt"
    path = built_in if built_in.is_file() else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in TEMPLATES.glob("*.txt")))
        raise ValueError(f"evaluation.llm.template={name} is neither one of {known} nor a file")
    text = path.read_text(encoding="utf-8")
    parts = [Template(part.strip()) for part in text.split(SYSTEM_ENDS, 1)]
    wanted, found = {"prompt", "first", "second"}, set(parts[-1].get_identifiers())
    if not parts[-1].is_valid() or found != wanted or (parts[:-1] and parts[0].get_identifiers()):
        raise ValueError(
            f"evaluation.llm.template={name} must hold $prompt, $first and $second in its user message, and nothing "
            f"else with a dollar sign (write $$ for one); found {', '.join(sorted(found)) or 'none'}"
        )
    return parts


def verdict_of(reply: str) -> Verdict:
    """The verdict in a reply that ends with "Preferred: A", "Preferred: B" or "Preferred: tie".

    Returns:
        None for anything else: a refusal, a reply that was cut off, another label, two labels that differ.
    """
    labels = {label.strip().lower() for label in PREFERRED.findall(reply)}
    return VERDICTS.get(labels.pop()) if len(labels) == 1 else None


def wait_seconds(state: tenacity.RetryCallState, longest: float) -> float:
    """How long to wait before the next attempt: what the server asks for, else twice as long each time, jittered."""
    error = state.outcome.exception() if state.outcome is not None else None
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
    try:
        return min(longest, max(0.0, float(headers["retry-after"])))
    except (KeyError, ValueError):
        return tenacity.wait_random_exponential(multiplier=min(0.5, longest), max=longest)(state)


def _body(request: Mapping[str, Any]) -> dict[str, Any]:
    """What is sent: settings left to the server's default are left out."""
    return {name: value for name, value in request.items() if name != "base_url" and value is not None}


def _answer(client: Any, request: Mapping[str, Any]) -> Answer:
    try:
        response = client.chat.completions.create(**request)
    except openai.BadRequestError as error:
        if error.code == "content_filter":
            return Answer("(refused by the server's content filter)", 0, 0)
        raise Refused(str(error)) from error
    except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
        raise Refused(str(error)) from error
    try:
        message, usage = response.choices[0].message, response.usage
        text = message.content if message.content is not None else message.refusal
        return Answer(str(text or ""), usage.prompt_tokens if usage else 0, usage.completion_tokens if usage else 0)
    except (AttributeError, IndexError, TypeError) as error:
        raise Malformed(f"the reply is no chat completion: {str(response)[:200]}") from error


def _passes(error: BaseException) -> bool:
    """Whether an error may be gone at the next attempt."""
    passing = (
        openai.APIConnectionError,  # time-outs among them
        openai.RateLimitError,
        openai.InternalServerError,
        openai.ConflictError,
        openai.APIResponseValidationError,
        Malformed,
        ValueError,  # JSON that is none
    )
    return isinstance(error, passing)


def _api_key(settings: LlmJudgeSettings) -> str:
    key = os.environ.get(settings.api_key_env, "")
    if not key and settings.base_url is None:
        raise ValueError(
            f"the judge llm needs a key in the environment variable {settings.api_key_env} (evaluation.llm.api_key_env)"
            f", or a server of your own that needs none: evaluation.llm.base_url=http://127.0.0.1:8000/v1"
        )
    return key or "none"
