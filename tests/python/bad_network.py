"""A proxy that is a bad network. As a program: bad_network.py PORT TARGET_PORT; each line of
its input has the odds of a fault from then on."""

import random
import socket
import sys
import threading
import time


class Proxy:
    """It hands bytes on; to a piece of them it does, by these odds, what a bad network does."""

    def __init__(self, target, odds=0.02, address=("127.0.0.1", 0)):
        self.target, self.odds, self.faults = target, odds, 0
        self.listener = socket.create_server(address)
        self.port = self.listener.getsockname()[1]
        self.random = random.Random(11)
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self):
        self.listener.settimeout(0.1)
        while not self.stop.is_set():
            try:
                client, _ = self.listener.accept()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
                server = socket.create_connection(("127.0.0.1", self.target), 5)
            except (TimeoutError, OSError):
                continue
            for pair in ((client, server), (server, client)):
                thread = threading.Thread(target=self.pump, args=pair)
                self.threads.append(thread)
                thread.start()

    def pump(self, source, target):
        source.settimeout(0.1)
        try:
            while not self.stop.is_set():
                try:
                    data = source.recv(1 << 16)
                except TimeoutError:
                    continue
                if not data:
                    break
                if self.random.random() < self.odds:
                    self.faults += 1
                    kind = self.random.randrange(4)
                    if kind == 0:  # the connection ends
                        break
                    if kind == 1:  # bytes are others
                        at = self.random.randrange(len(data))
                        data = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1:]
                    if kind == 2:  # some never come
                        data = data[:len(data) // 2]
                    if kind == 3:
                        time.sleep(0.3)
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        self.listener.close()


if __name__ == "__main__":
    proxy = Proxy(int(sys.argv[2]), 0, ("0.0.0.0", int(sys.argv[1])))
    for line in sys.stdin:
        proxy.odds = float(line)
    proxy.end()
