#!/bin/sh
# How soon the kernel tells that an interface has lost its carrier.
#
# Subject:  Linux (seen on 6.18), RTM_NEWLINK to listeners of RTNLGRP_LINK. Needs ip, unshare, python3, /dev/net/tun,
#           and leave to make user namespaces (or root). All interfaces are in namespaces of its own.
# Expected: a lost carrier is told within some milliseconds, always. Another network namespace has no part in it. To ask
#           for an interface's state changes nothing.
# Seen:     so it is while nothing else has lost its carrier within the last second. After another interface has, in
#           whichever namespace, the message waits for the rest of that second, and IFF_RUNNING of the interface's
#           flags is as late. Who asks by ETHTOOL_GLINK gets the right answer at once, and his question has the message
#           sent to everybody at once.
set -eu
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare -Urn sh "$0"
fi
python3 - <<'PYTHON'
import ctypes, fcntl, os, platform, select, socket, struct, subprocess, time

TUNSETIFF, TUNSETCARRIER, SIOCGIFFLAGS, SIOCETHTOOL = 0x400454CA, 0x400454E2, 0x8913, 0x8946
IFF_TAP, IFF_NO_PI, IFF_RUNNING, ETHTOOL_GLINK = 0x2, 0x1000, 0x40, 0xA
CLONE_NEWNET, NETLINK_ROUTE, RTMGRP_LINK = 0x40000000, 0, 1


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    return fd


def carrier(fd, on):
    fcntl.ioctl(fd, TUNSETCARRIER, struct.pack("i", on))


libc = ctypes.CDLL(None, use_errno=True)
own = os.open("/proc/self/ns/net", os.O_RDONLY)
near = tap("near0")
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE)
listener.bind((0, RTMGRP_LINK))
assert libc.unshare(CLONE_NEWNET) == 0, "no further namespace"
far = tap("far0")
assert libc.setns(own, CLONE_NEWNET) == 0


def flags_run():
    flags = fcntl.ioctl(asker, SIOCGIFFLAGS, struct.pack("16sH22x", b"near0", 0))
    return bool(struct.unpack_from("H", flags, 16)[0] & IFF_RUNNING)


def ethtool_has_link():
    value = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_GLINK, 0), 8)
    fcntl.ioctl(asker, SIOCETHTOOL, struct.pack("16sP16x", b"near0", ctypes.addressof(value)))
    return bool(struct.unpack("II", value.raw)[1])


def told_after(asks):
    """Takes the carrier of near0; milliseconds until the kernel tells, and the answer of `asks` meanwhile."""
    while select.select([listener], [], [], 0)[0]:
        listener.recv(65536)
    start = time.monotonic()
    carrier(near, 0)
    answer = asks()
    while True:
        assert select.select([listener], [], [], 10)[0], "nothing was told in 10 s"
        flags = struct.unpack_from("I", listener.recv(65536), 16 + 8)[0]
        if not flags & IFF_RUNNING:
            return (time.monotonic() - start) * 1e3, answer


def measure(other_first, asks):
    carrier(near, 1)
    carrier(far, 1)
    time.sleep(2.5)
    if other_first:
        carrier(far, 0)
        time.sleep(0.2)
    return told_after(asks)


print("kernel", platform.release())
kinds = {
    "alone": (False, flags_run),
    "0.2 s after another namespace's interface": (True, flags_run),
    "0.2 s after it, and asked by ETHTOOL_GLINK": (True, ethtool_has_link),
}
seen = {name: [measure(*how) for _ in range(3)] for name, how in kinds.items()}
for name, runs in seen.items():
    print("%s: told after %s ms; asked meanwhile, it runs: %s"
          % (name, ", ".join("%.0f" % ms for ms, _ in runs), ", ".join(str(is_up) for _, is_up in runs)))
alone, after, asked = (sorted(ms for ms, _ in runs) for runs in seen.values())
answers = [[is_up for _, is_up in runs] for runs in seen.values()]
changed = "the behaviour has changed"
assert answers[1:] == [[True] * 3, [False] * 3], changed
assert after[0] > 10 * alone[1] and after[0] > 10 * asked[1], changed
PYTHON
