"""An engine of your own: each party in a process of its own, asked over a pipe."""

import multiprocessing
import time
from types import SimpleNamespace

from dovetail.errors import DovetailError, PartyError
from dovetail.network import Engine, Replies, decode, encode


def serve(make, line):  # in the party's process
    party = make()  # its rows are read here, and stay here
    while True:
        message = line.recv_bytes()
        try:  # a type that the party does not accept is refused
            kind, data = b"answer", encode(party.handle(decode(message, party.accepts)))
        except DovetailError as error:
            kind, data = b"error", str(error).encode()
        line.send_bytes(kind)
        line.send_bytes(data)


class Pipes(Engine):  # in the driver's process
    parties = ()

    def __init__(self, makers, *, driver):
        super().__init__(driver)
        self.parties, self.lines = tuple(makers), {}
        processes = multiprocessing.get_context("spawn")
        for name, make in makers.items():
            self.lines[name], other = processes.Pipe()
            processes.Process(target=serve, args=(make, other), daemon=True).start()
            other.close()

    def send(self, requests, reply, *, timeout_s=None):  # returns at once: the driver computes on
        until = None if timeout_s is None else time.monotonic() + timeout_s
        replies = Replies({}, {})
        for name, message in requests.items():
            try:
                self.lines[name].send_bytes(encode(message))
                self.ledger.record(self.driver, name, message)
            except (KeyError, OSError):
                replies.failures[name] = PartyError(name, "its process has ended")
        asked = requests.keys() - replies.failures.keys()
        return SimpleNamespace(replies=lambda: self.receive(asked, reply, until, replies))

    def receive(self, asked, reply, until, replies):
        for name in asked:
            try:
                if not self.lines[name].poll(until and max(0.0, until - time.monotonic())):
                    raise EOFError("it did not answer in time")  # nor is it asked again
                kind, data = self.lines[name].recv_bytes(), self.lines[name].recv_bytes()
                if kind == b"error":
                    raise DovetailError(data.decode())
                replies[name] = decode(data, (reply,))
                self.ledger.record(name, self.driver, replies[name])
            except (DovetailError, EOFError, OSError) as cause:
                if not isinstance(cause, DovetailError):
                    self.lines.pop(name).close()
                replies.failures[name] = PartyError(name, str(cause) or "its process has ended")
        return replies
