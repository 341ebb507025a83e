"""A small data-parallel training, without any package: one process per rank, gradients summed over TCP.

Each rank holds its own part of the data and fits y = w·x by gradient descent. After every step the ranks send their gradients to rank 0, which adds
them in the order of the ranks and sends the sum back: an all-reduce by hand. Rank, size and address come from Slurm's variables. The GPU that Slurm
assigned is printed and not used: it is simulated, the arithmetic runs on the CPU.
"""

import json
import os
import random
import socket
import time

RANK, SIZE = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
WEIGHTS, ROWS, STEPS, RATE, SECONDS = (3.0, -2.0, 0.5), 4000, 40, 0.4, 20


def send(connection, numbers):
    connection.sendall(json.dumps(numbers).encode() + b"\n")


def connections():
    """Rank 0: one connection per other rank, by rank. Others: their connection to rank 0."""
    if RANK == 0:
        with socket.create_server(ADDRESS) as server:
            server.settimeout(SECONDS)
            found = {}
            while len(found) < SIZE - 1:
                connection, _ = server.accept()
                connection.settimeout(SECONDS)
                lines = connection.makefile()
                found[json.loads(lines.readline())] = (connection, lines)
            return [found[rank] for rank in range(1, SIZE)]
    deadline = time.monotonic() + SECONDS
    while True:  # rank 0 may not listen yet
        try:
            connection = socket.create_connection(ADDRESS, timeout=SECONDS)
            send(connection, RANK)
            return [(connection, connection.makefile())]
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def all_reduce(peers, numbers):
    """The sum over all ranks, on every rank."""
    if RANK:
        send(peers[0][0], numbers)
        return json.loads(peers[0][1].readline())
    total = numbers
    for _, lines in peers:
        total = [a + b for a, b in zip(total, json.loads(lines.readline()))]
    for connection, _ in peers:
        send(connection, total)
    return total


chance = random.Random(RANK)
data = [(x, sum(w * v for w, v in zip(WEIGHTS, x))) for x in ([chance.uniform(-1, 1) for _ in WEIGHTS] for _ in range(ROWS))]
peers = connections()
print(f"rank {RANK} of {SIZE} on {os.environ['SLURMD_NODENAME']}, GPU {os.environ.get('CUDA_VISIBLE_DEVICES', 'none')}", flush=True)
weights = [0.0] * len(WEIGHTS)
for step in range(1, STEPS + 1):
    errors = [(x, sum(w * v for w, v in zip(weights, x)) - y) for x, y in data]
    mine = [sum(2 * error * x[i] for x, error in errors) for i in range(len(WEIGHTS))] + [sum(error * error for _, error in errors)]
    *gradient, loss = all_reduce(peers, mine)
    weights = [w - RATE * g / (ROWS * SIZE) for w, g in zip(weights, gradient)]
    if RANK == 0 and step in (1, 10, STEPS):
        print(f"step {step:>2}: loss {loss / (ROWS * SIZE):.4f}, weights {' '.join(f'{w:.2f}' for w in weights)}", flush=True)
