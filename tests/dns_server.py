"""A small name server on loopback, over UDP and TCP, whose records a test changes as it goes."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
from types import TracebackType
from typing import Final

A: Final = 1
CNAME: Final = 5
AAAA: Final = 28


def encoded(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def record(owner: bytes, kind: int, data: bytes) -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, 5, len(data)) + data


def response(
    query: bytes, addresses: list[str] | None, *, code: int = 0, alias: str | None = None, truncated: bool = False
) -> bytes:
    """What a server says to a query: its addresses of the kind that was asked for, perhaps behind an alias."""
    end = query.index(b"\0", 12) + 5
    (kind,) = struct.unpack("!H", query[end - 4 : end - 2])
    owner = b"\xc0\x0c"
    records = []
    if alias:
        records.append(record(owner, CNAME, encoded(alias)))
        owner = encoded(alias)
    for text in addresses or []:
        address = ipaddress.ip_address(text)
        if kind == (A if address.version == 4 else AAAA):
            records.append(record(owner, kind, address.packed))
    if truncated:
        records = []
    flags = 0x8180 | code | (0x0200 if truncated else 0)
    return query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0) + query[12:end] + b"".join(records)


class DnsServer:
    """Answers from a thread; `records` by name, `code` for all, and `mute` says nothing at all."""

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}
        self.code = 0
        self.mute = False
        # Datagrams with more addresses than this are cut off, so that the client has to come by TCP.
        self.most = 50
        self.asked: list[str] = []
        self.over_tcp = 0
        # Said before each answer over UDP: what others than the server may send.
        self.noise: list[bytes] = []
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._bind()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._serve_udp, self._serve_tcp)]

    def _bind(self) -> None:
        for _ in range(50):
            self._udp.bind(("127.0.0.1", 0))
            try:
                self._tcp.bind(self._udp.getsockname())
            except OSError:  # somebody has the same number over TCP
                self._udp.close()
                self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            else:
                self._tcp.listen()
                return
        raise RuntimeError("no port is free over both UDP and TCP")

    def __enter__(self) -> DnsServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in (self._udp, self._tcp):
            # Closing alone would not wake a thread that waits on it.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self._threads:
            thread.join(5)

    @property
    def port(self) -> int:
        port: int = self._udp.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _answer(self, query: bytes, *, tcp: bool) -> bytes:
        end = query.index(b"\0", 12)
        name, at = [], 12
        while query[at]:
            name.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        assert at == end
        self.asked.append(".".join(name))
        found = self.records.get(".".join(name))
        code = self.code or (3 if found is None else 0)
        truncated = not tcp and len(found or ()) > self.most
        return response(query, found if not code else None, code=code, truncated=truncated)

    def _serve_udp(self) -> None:
        while True:
            try:
                query, sender = self._udp.recvfrom(4096)
            except OSError:
                return
            if not query:
                return
            if not self.mute:
                for data in [*self.noise, self._answer(query, tcp=False)]:
                    self._udp.sendto(data, sender)

    def _serve_tcp(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            with connection:
                self.over_tcp += 1
                data = connection.recv(4096)
                answer = self._answer(data[2:], tcp=True)
                connection.sendall(struct.pack("!H", len(answer)) + answer)
