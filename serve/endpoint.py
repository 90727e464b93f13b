"""A server that speaks vLLM's OpenAI-compatible API: where it is and under which name."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens.

    Attributes:
        url: scheme, host and port, without a trailing slash and without `/v1`.
        model: the served model's name.
        api_key: the bearer token, if the server wants one; never printed.
    """

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers that authenticate a request."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
