"""Which clients there are, what they need, and how large that is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["python", "node"]


@dataclass(frozen=True, slots=True)
class Client:
    """One client. `packages` are pinned to what was last seen to work; `shown` is the one whose version is reported.

    `conversation` is how many turns its program ends with, 0 for a load tool; `megabytes` is its environment.
    """

    name: str
    title: str
    kind: Kind
    program: str
    packages: tuple[str, ...]
    megabytes: int
    conversation: int = 5
    large: bool = False

    @property
    def shown(self) -> str:
        """The package that the client is known by, without extras and version."""
        return re.split(r"[\[=@]", self.packages[0])[0]

    @property
    def environment(self) -> str:
        """Clients with the same packages share an environment."""
        return f"{self.kind}-{self.shown}".replace("/", "-")


_ALL: Final = (
    Client("openai-python", "openai for Python", "python", "openai_python", ("openai==3.57.0",), 60),
    Client("openai-node", "openai for Node", "node", "openai_node.mjs", ("openai@6.49.0",), 20),
    Client("anthropic", "anthropic for Python", "python", "anthropic_python", ("anthropic==2.14.0",), 80),
    Client(
        "langchain",
        "LangChain ChatOpenAI",
        "python",
        "langchain_python",
        ("langchain-openai==1.7.4", "openai==3.57.0"),
        140,
    ),
    Client(
        "litellm", "LiteLLM as a library", "python", "litellm_python", ("litellm[proxy]==1.108.7",), 760, large=True
    ),
    Client(
        "litellm-proxy",
        "LiteLLM's proxy in front",
        "python",
        "litellm_proxy",
        ("litellm[proxy]==1.108.7",),
        760,
        large=True,
    ),
    Client(
        "aiperf",
        "aiperf as a load tool",
        "python",
        "aiperf_load",
        ("aiperf==0.13.0",),
        1_200,
        conversation=0,
        large=True,
    ),
    # With PyTorch for the CPU alone it is 1,500.
    Client(
        "guidellm",
        "guidellm as a load tool",
        "python",
        "guidellm_load",
        ("guidellm==0.8.1",),
        6_000,
        conversation=0,
        large=True,
    ),
)
CLIENTS: Final[Mapping[str, Client]] = {client.name: client for client in _ALL}
