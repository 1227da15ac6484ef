"""Network namespaces on one kernel, joined by a wire of our own that delays and loses packets.

Each namespace has one tunnel device; a process in the middle reads IP packets from each, throws
some away, and hands the others on after a delay. So the hosts share nothing but that wire, TCP sees
real loss and delay, and no kernel module for traffic shaping is needed. Needs root, ``ip`` and
``/dev/net/tun``.

    python slow_network.py NAME... --delay 0.02 --loss 0.01 --seconds 600      (runs the wire; ends
    when its parent does)
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
NETWORK = "10.77.0"


def missing_rights() -> str | None:
    """Why no namespaces can be made here, or None."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a Linux facility"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "the command ip (iproute2) is not installed"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is not there"
    done = subprocess.run(["ip", "netns", "add", "sheafdeq-probe"], capture_output=True)
    subprocess.run(["ip", "netns", "del", "sheafdeq-probe"], capture_output=True)
    return None if done.returncode == 0 else "network namespaces are not allowed here"


def address(number: int) -> str:
    """Of host 0, 1, ..."""
    return f"{NETWORK}.{number + 1}"


def make(names: list[str]) -> None:
    """Empty namespaces with a loopback device."""
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)


def remove(names: list[str]) -> None:
    """Kill whatever still runs in them and delete them."""
    for name in names:
        kill_inside(name)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def processes_inside(name: str) -> list[int]:
    """Process numbers."""
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def kill_inside(name: str) -> None:
    """What happens to a host that loses its power."""
    for _ in range(20):
        found = processes_inside(name)
        if not found:
            return
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, 9)
        time.sleep(0.1)


def _tunnel(name: str, number: int) -> int:
    """A tunnel device inside a namespace; the descriptor works from outside."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(there, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter namespace {name}")
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"wire", IFF_TUN | IFF_NO_PI))
    finally:
        library.setns(home, CLONE_NEWNET)
        os.close(home)
        os.close(there)
    subprocess.run(
        ["ip", "-n", name, "addr", "add", f"{address(number)}/24", "dev", "wire"], check=True
    )
    subprocess.run(["ip", "-n", name, "link", "set", "wire", "up", "mtu", "9000"], check=True)
    return device


def run_wire(names: list[str], delay: float, loss: float, seconds: float) -> None:
    """Forward packets until the time is over or the parent is gone."""
    devices = [_tunnel(name, number) for number, name in enumerate(names)]
    of_address = {
        socket.inet_aton(address(number)): device for number, device in enumerate(devices)
    }
    draw, waiting, count = random.Random(0), [], 0
    parent, deadline = os.getppid(), time.monotonic() + seconds
    print("ready", flush=True)
    while time.monotonic() < deadline and os.getppid() == parent:
        pause = min(0.2, waiting[0][0] - time.monotonic()) if waiting else 0.2
        ready, _, _ = select.select(devices, [], [], max(0.0, pause))
        for device in ready:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(device, 65536)
                    to = of_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                    if to is not None and draw.random() >= loss:
                        count += 1
                        heapq.heappush(waiting, (time.monotonic() + delay, count, to, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):
                os.write(to, packet)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=1800.0)
    options = parser.parse_args()
    run_wire(options.names, options.delay, options.loss, options.seconds)
