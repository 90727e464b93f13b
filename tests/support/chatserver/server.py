"""The HTTP side: vLLM's paths and forms, on loopback."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from tests.support.chatserver.brain import Brain, Said
from tests.support.chatserver.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_WORD = re.compile(r"\s*\S+|\s+")
_STALLED_S = 30.0
_MEETING_S = 1.0


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def number(word: str) -> int:
    return zlib.crc32(word.encode()) % 50000


class ChatServer:
    """The server, as a context; `url` is where it listens.

    Args:
        fault: what it does wrong.
        model, context: what it serves.
        pool_tokens: what it says its KV pool holds.
        drafts: tokens that it drafts; 0 for none.
        key: the API key that it wants.
        port: where it listens; any free one if 0.
    """

    def __init__(
        self,
        fault: Fault | None = None,
        *,
        model: str = "tiny-qwen3.5",
        context: int = 2048,
        pool_tokens: int = 87296,
        drafts: int = 3,
        key: str | None = None,
        port: int = 0,
    ) -> None:
        self.brain = Brain(fault)
        self.model = "other" if fault is Fault.WRONG_MODEL else model
        self.context = context // 2 if fault is Fault.SHORT_CONTEXT else context
        self.pool_tokens = pool_tokens // 2 if fault is Fault.SMALL_POOL else pool_tokens
        self.drafts = drafts
        self.key = key
        self.steps = 0
        self.hits = 0
        self.ended = threading.Event()
        handler = type("Handler", (_Handler,), {"chat": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def metrics(self) -> str:
        name = f'model_name="{self.model}"'
        sizes = f'block_size="384",kv_cache_size_tokens="{self.pool_tokens}"'
        lines = [
            f"vllm:cache_config_info{{{sizes}}} 1.0",
            f"vllm:prefix_cache_hits_total{{{name}}} {self.hits}",
            f"vllm:num_requests_running{{{name}}} 0",
        ]
        if self.drafts and not self.brain.has(Fault.NO_COUNTERS):
            places = [self.steps * 3 // (4 + place) for place in range(self.drafts)]
            if self.brain.has(Fault.ZERO_ACCEPTANCE):
                places = [0] * self.drafts
            if self.brain.has(Fault.LAST_PLACE_DEAD):
                places[-1] = 0
            prefix = "vllm:spec_decode_num_"
            lines += [
                f"{prefix}drafts_total{{{name}}} {self.steps}",
                f"{prefix}draft_tokens_total{{{name}}} {self.steps * self.drafts}",
                f"{prefix}accepted_tokens_total{{{name}}} {sum(places)}",
            ]
            lines += [
                f'{prefix}accepted_tokens_per_pos_total{{{name},position="{place}"}} {count}'
                for place, count in enumerate(places)
            ]
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    chat: ChatServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _reply(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _json(self, found: object, status: int = 200) -> None:
        self._reply(status, json.dumps(found).encode())

    def do_GET(self) -> None:
        chat = self.chat
        if self.path == "/health":
            self._reply(503 if chat.brain.has(Fault.UNHEALTHY) else 200, b"")
        elif self.path == "/version":
            self._json({"version": "0.33.0+sm120.1"})
        elif self.path == "/v1/models":
            self._json({"data": [{"id": chat.model, "max_model_len": chat.context}]})
        elif self.path == "/metrics":
            self._reply(200, chat.metrics().encode(), "text/plain")
        else:
            self._json({"error": {"message": "no such path"}}, 404)

    def do_POST(self) -> None:
        chat = self.chat
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if chat.key and self.headers.get("Authorization") != f"Bearer {chat.key}":
            self._json({"error": {"message": "Unauthorized"}}, 401)
        elif self.path == "/tokenize":
            self._json({"tokens": [number(word) for word in words(body["prompt"])]})
        elif self.path == "/v1/completions":
            self._json({"choices": [{"prompt_logprobs": list(self._expected(body["prompt"]))}]})
        elif self.path == "/v1/chat/completions":
            with self._crowd():
                self._answer(body)
        else:
            self._json({"error": {"message": "no such path"}}, 404)

    @contextlib.contextmanager
    def _crowd(self) -> Iterator[None]:
        brain = self.chat.brain
        with brain.lock:
            brain.busy += 1
        try:
            yield
        finally:
            with brain.lock:
                brain.busy -= 1

    def _expected(self, tokens: list[int]) -> Iterator[dict[str, Any] | None]:
        yield None
        far = self.chat.brain.has(Fault.FAR_FROM_REFERENCE)
        for token in tokens[1:]:
            first, second = (token + 1, token) if far else (token, token + 1)
            yield {str(first): {"logprob": -0.1}, str(second): {"logprob": -3.0}}

    def _answer(self, body: dict[str, Any]) -> None:
        chat = self.chat
        prompt = json.dumps(body["messages"])
        asked = prompt in chat.brain.seen
        meets = chat.brain.has(Fault.CROWD) and "lighthouse" in prompt
        end = time.monotonic() + _MEETING_S
        while meets and chat.brain.busy < 2 and time.monotonic() < end:
            time.sleep(0.01)  # requests at the same time meet here
        plain = "France" in prompt
        said = chat.brain.answer(body)
        chat.steps += len(words(said.text))
        if asked:
            chat.hits += len(words(prompt)) // 2
        if body.get("stream"):
            self._stream(said)
        elif plain and chat.brain.has(Fault.SERVER_ERROR):
            self._json({"error": {"message": "Internal Server Error"}}, 500)
        elif plain and chat.brain.has(Fault.NOT_JSON):
            self._reply(200, b"<html>502</html>", "text/html")
        else:
            self._json(self._completion(said, prompt, logprobs=bool(body.get("logprobs"))))

    def _completion(self, said: Said, prompt: str, *, logprobs: bool) -> dict[str, Any]:
        calls = [
            {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(said.calls)
        ]
        message = {"role": "assistant", "content": said.text, "reasoning": said.reasoning,
                   "tool_calls": calls}  # fmt: skip
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": said.finish}
        if logprobs:
            value = -0.01 - said.shift
            choice["logprobs"] = {
                "content": [
                    {"token": w, "logprob": value,
                     "top_logprobs": [{"token": w, "logprob": value},
                                      {"token": "x", "logprob": -6.0}]}
                    for w in words(said.text)
                ]
            }  # fmt: skip
        usage = {
            "prompt_tokens": len(words(prompt)),
            "completion_tokens": len(words(said.text)),
        }
        return {"choices": [choice], "usage": usage}

    def _stream(self, said: Said) -> None:
        brain = self.chat.brain
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        pieces = [said.text] if brain.has(Fault.ONE_PIECE) else words(said.text)
        for place, piece in enumerate(pieces):
            if place == len(pieces) // 2 and brain.has(Fault.STALL):
                self.chat.ended.wait(_STALLED_S)
                return
            if place == len(pieces) // 2 and brain.has(Fault.CUT_STREAM):
                return
            last = place == len(pieces) - 1
            choice = {"delta": {"content": piece}, "finish_reason": "stop" if last else None}
            self._event({"choices": [choice]})
        self._event({"choices": [], "usage": {"completion_tokens": len(pieces)}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, found: object) -> None:
        self.wfile.write(f"data: {json.dumps(found)}\n\n".encode())
        self.wfile.flush()
