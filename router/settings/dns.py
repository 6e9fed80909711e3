"""Names under which workers are found, and whom to ask for their addresses."""

from __future__ import annotations

import ipaddress
import re


def read_dns_name(text: str) -> str:
    """`name:port` in its canonical form; ValueError says what is wrong with it."""
    name, _, port = text.strip().lower().rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65_536:
        raise ValueError("a name under which workers are found is name:port")
    labels = name.removesuffix(".").split(".")
    if len(name) > 253 or not all(re.fullmatch(r"[a-z0-9_-]{1,63}", label) for label in labels):
        raise ValueError("the name of name:port is a plain host name, without http://")
    if labels[-1].isdigit():
        raise ValueError("an address needs no lookup: name it under workers")
    return f"{name}:{int(port)}"


def read_name_server(text: str) -> tuple[str, int]:
    """The address and port of a name server (53 if it has none); ValueError says what is wrong."""
    bare = text.strip()
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[0-9.]+)(?::(\d{1,5}))?", bare)
    host, port = (found[1].strip("[]"), int(found[2] or 53)) if found else (bare, 53)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError("a name server is an address, perhaps with a port: 10.0.0.10 or 127.0.0.1:8600") from None
    if not 0 < port < 65_536:
        raise ValueError("the port of a name server is from 1 to 65535")
    return host, port
