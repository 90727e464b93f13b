"""A client of vLLM's OpenAI-compatible API that gives values, or says what was wrong.

Field names are those of vLLM 0.33.0 (`vllm/entrypoints/openai/chat_completion/protocol.py`,
`completion/protocol.py`): a thought is `reasoning`, prompt log-probabilities are vLLM's own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from serve.endpoint import Endpoint

_CONNECT_S = 5.0


class AnswerError(Exception):
    """The server gave no answer, or one that is not of the API's form; the text says which."""


@dataclass(frozen=True)
class Call:
    """One tool call: the function's name and its arguments as the JSON text that came."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Token:
    """One generated token.

    Attributes:
        text: its text.
        logprob: its natural log-probability.
        lead: how far, in log-probability, the best token is from the second best.
    """

    text: str
    logprob: float
    lead: float


@dataclass(frozen=True)
class Answer:
    """What a request gave.

    Attributes:
        text: the content; empty if there is none.
        reasoning: the thought; empty if there is none.
        calls: the tool calls.
        finish: why it ended, such as `stop`, `length` or `tool_calls`; empty if nothing says.
        tokens: the generated tokens, if log-probabilities were asked for.
        prompt_tokens, completion_tokens: as the server counts them.
        chunks: events that carried something, in a stream.
        done: whether the stream ended as streams must.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""
    tokens: tuple[Token, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    chunks: int = 0
    done: bool = True


@dataclass(frozen=True)
class Client:
    """Asks one server.

    Attributes:
        endpoint: the server.
        patience: after so many seconds without a byte, an answer is given up.
    """

    endpoint: Endpoint
    patience: float = 600.0

    def _ask(
        self, method: str, path: str, body: object = None, *, stream: bool = False
    ) -> requests.Response:
        session = requests.Session()
        session.trust_env = False  # no proxy, no netrc: the server is where the endpoint says
        try:
            response = session.request(
                method,
                f"{self.endpoint.url}{path}",
                json=body,
                headers=self.endpoint.headers(),
                timeout=(_CONNECT_S, self.patience),
                stream=stream,
            )
        except requests.RequestException as error:
            raise AnswerError(self._without(path, error)) from error
        if response.status_code != requests.codes.ok:
            told = " ".join(response.text.split())[:300]
            raise AnswerError(f"{method} {path}: HTTP {response.status_code} {told}".rstrip())
        return response

    def _without(self, path: str, error: requests.RequestException) -> str:
        if isinstance(error, requests.ConnectTimeout | requests.ConnectionError):
            if "timed out" in str(error):
                return f"{path}: no byte for {self.patience:g} s"
            return f"{path}: no connection, or it was cut"
        if isinstance(error, requests.ReadTimeout):
            return f"{path}: no byte for {self.patience:g} s"
        return f"{path}: {type(error).__name__}"

    def _json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            found = self._ask(method, path, body).json()
        except requests.JSONDecodeError as error:
            raise AnswerError(f"{path}: the answer is not JSON") from error
        if not isinstance(found, dict):
            raise AnswerError(f"{path}: the answer is not a JSON object")
        return found

    def health(self) -> None:
        """Return if the server says that it is well.

        Raises:
            AnswerError: if it does not.
        """
        self._ask("GET", "/health")

    def version(self) -> str:
        """Return vLLM's version.

        Raises:
            AnswerError: if the server tells none.
        """
        return str(self._json("GET", "/version").get("version", ""))

    def models(self) -> dict[str, int]:
        """Return the served models with their context in tokens.

        Raises:
            AnswerError: if the list does not come.
        """
        data = self._json("GET", "/v1/models").get("data")
        if not isinstance(data, list):
            raise AnswerError("/v1/models: there is no list of models")
        return {str(each.get("id")): int(each.get("max_model_len") or 0) for each in data}

    def metrics(self) -> str:
        """Return the server's metrics in Prometheus' text format.

        Raises:
            AnswerError: if they do not come.
        """
        return self._ask("GET", "/metrics").text

    def tokenize(self, text: str) -> list[int]:
        """Return a text's tokens.

        Raises:
            AnswerError: if they do not come.
        """
        body = {"model": self.endpoint.model, "prompt": text, "add_special_tokens": False}
        tokens = self._json("POST", "/tokenize", body).get("tokens")
        if not isinstance(tokens, list):
            raise AnswerError("/tokenize: there are no tokens")
        return [int(token) for token in tokens]

    def _body(
        self,
        messages: Sequence[Mapping[str, object]],
        max_tokens: int,
        *,
        thinking: bool,
        more: Mapping[str, object],
    ) -> dict[str, object]:
        return {
            "model": self.endpoint.model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": max_tokens,
            "chat_template_kwargs": {"enable_thinking": thinking},
            **more,
        }

    def chat(
        self,
        messages: Sequence[Mapping[str, object]] | str,
        max_tokens: int,
        *,
        thinking: bool = False,
        **more: object,
    ) -> Answer:
        """Return the answer to a conversation, or to one question.

        Raises:
            AnswerError: if none comes.
        """
        body = self._body(_messages(messages), max_tokens, thinking=thinking, more=more)
        found = self._json("POST", "/v1/chat/completions", body)
        try:
            choice = found["choices"][0]
            message = choice["message"]
            usage = found.get("usage") or {}
            return Answer(
                text=message.get("content") or "",
                reasoning=message.get("reasoning") or "",
                calls=tuple(
                    Call(call["function"]["name"], call["function"]["arguments"])
                    for call in message.get("tool_calls") or ()
                ),
                finish=choice.get("finish_reason") or "",
                tokens=_tokens(choice.get("logprobs")),
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                completion_tokens=int(usage.get("completion_tokens") or 0),
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise AnswerError("the answer does not have the form of a chat completion") from error

    def stream(self, question: str, max_tokens: int) -> Answer:
        """Return the answer to a question as it streams in.

        Raises:
            AnswerError: if it stalls, or an event is not of the API's form.
        """
        more = {"stream": True, "stream_options": {"include_usage": True}}
        body = self._body(_messages(question), max_tokens, thinking=False, more=more)
        response = self._ask("POST", "/v1/chat/completions", body, stream=True)
        text, finish, chunks, generated, done = "", "", 0, 0, False
        try:
            for event in _events(response):
                if event is None:
                    done = True
                    break
                usage = event.get("usage") or {}
                generated = int(usage.get("completion_tokens") or generated)
                for choice in event.get("choices") or ():
                    text += choice["delta"].get("content") or ""
                    finish = choice.get("finish_reason") or finish
                    chunks += 1
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            if "timed out" in str(error):
                raise AnswerError(f"the stream gave no byte for {self.patience:g} s") from error
            if not isinstance(error, requests.RequestException):
                raise AnswerError("an event does not have the form of a chunk") from error
        finally:
            response.close()
        return Answer(
            text=text, finish=finish, completion_tokens=generated, chunks=chunks, done=done
        )

    def prompt_logprobs(self, tokens: Sequence[int], top: int) -> list[dict[int, float]]:
        """Return what the model expects at each token but the first: log-probability by token.

        Raises:
            AnswerError: if the server gives none.
        """
        body = {
            "model": self.endpoint.model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": top,
        }
        found = self._json("POST", "/v1/completions", body)
        try:
            rows = found["choices"][0]["prompt_logprobs"]
            return [
                {int(token): float(each["logprob"]) for token, each in row.items()}
                for row in rows[1:]
            ]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise AnswerError("the answer has no log-probabilities of the prompt") from error


def _messages(asked: Sequence[Mapping[str, object]] | str) -> Sequence[Mapping[str, object]]:
    return [{"role": "user", "content": asked}] if isinstance(asked, str) else asked


def _tokens(logprobs: dict[str, Any] | None) -> tuple[Token, ...]:
    found = []
    for each in (logprobs or {}).get("content") or ():
        best = sorted(
            (float(top["logprob"]) for top in each.get("top_logprobs") or ()), reverse=True
        )
        lead = best[0] - best[1] if len(best) > 1 else float("inf")
        found.append(Token(each["token"], float(each["logprob"]), lead))
    return tuple(found)


def _events(response: requests.Response) -> Iterator[dict[str, Any] | None]:
    """Yield the events of a stream, then None if it ends as it must."""
    for line in response.iter_lines(chunk_size=1):
        name, _, data = line.partition(b":")
        if name != b"data":
            continue
        if data.strip() == b"[DONE]":
            yield None
            return
        yield json.loads(data)
