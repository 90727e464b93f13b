"""A small server that speaks vLLM's OpenAI-compatible API, and does one thing wrong if asked to.

It stands in for vLLM only where vLLM cannot be made to misbehave; what is right is tested on the
real one. With no fault, every gate passes on it.
"""

from tests.support.chatserver.faults import Fault
from tests.support.chatserver.server import ChatServer

__all__ = ["ChatServer", "Fault"]
