#!/bin/sh
# What a TAP's counters say of frames that wait in its queue when the reader ends.
#
# Subject:  Linux (seen on 6.18), tun. Needs ip, tc, unshare, python3, /dev/net/tun, and leave to make user namespaces
#           (or root).
# Expected: a frame that the stack gave to the interface is sent or dropped in its counters, as with a network card.
# Seen:     a frame is counted when the process reads it, not before. What still waits when the process closes the
#           queue is lost, and is neither sent nor dropped for ever: of 100 frames 40 are counted. The queueing
#           discipline of the same interface has sent 100. Only what finds the queue full is counted as dropped.
set -eu
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare -Urn sh "$0"
fi
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
python3 - <<'PYTHON'
import fcntl, json, os, platform, socket, struct, subprocess, time

TUNSETIFF, TUNSETPERSIST = 0x400454CA, 0x400454CB
IFF_TAP, IFF_NO_PI = 0x2, 0x1000
# 0x88b5 is an EtherType for experiments.
FRAME = bytes.fromhex("ffffffffffff" "020000000001" "88b5").ljust(60, b"\0")


def attach(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def counters(name):
    shown = subprocess.run(["ip", "-j", "-s", "link", "show", name], check=True, capture_output=True).stdout
    tx = json.loads(shown)[0]["stats64"]["tx"]
    assert tx["errors"] == tx["carrier_errors"] == 0
    return tx["packets"], tx["dropped"]


def discipline():
    shown = subprocess.run(["tc", "-j", "-s", "qdisc", "show", "dev", "tap0"], check=True, capture_output=True).stdout
    return [(of["packets"], of["drops"]) for of in json.loads(shown)]


def send(name, frames):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((name, 0))
        for _ in range(frames):
            sender.send(FRAME)
    time.sleep(0.5)


def read(fd, frames):
    taken = 0
    try:
        while taken < frames:
            taken += os.read(fd, 2048) == FRAME
    except BlockingIOError:
        pass
    return taken


print("kernel", platform.release())
fd = attach("tap0")
fcntl.ioctl(fd, TUNSETPERSIST, 1)
subprocess.run(["tc", "qdisc", "add", "dev", "tap0", "root", "pfifo"], check=True)
ip("link", "set", "tap0", "up")
send("tap0", 100)
waiting = counters("tap0")
taken = read(fd, 40)
partly = counters("tap0")
by_discipline = discipline()
os.close(fd)
fd = attach("tap0")
left = read(fd, 100)
after = counters("tap0")
short = attach("tap1")
ip("link", "set", "tap1", "txqueuelen", "10", "up")
send("tap1", 100)
full = counters("tap1")
print("100 frames wait: sent, dropped:", waiting)
print("%d were read: %s; by its discipline: %s" % (taken, partly, by_discipline))
print("after close and open %d can be read: %s" % (left, after))
print("100 frames to another's queue of 10: sent, dropped:", full)
assert (waiting, taken, partly, by_discipline) == ((0, 0), 40, (40, 0), [(100, 0)]), "the behaviour has changed"
assert (left, after, full) == (0, (40, 0), (0, 90)), "the behaviour has changed"
PYTHON
