#!/bin/sh
# What an interface's byte counters say of one frame of 1000 octets.
#
# Subject:  Linux (seen on 6.18): TAP, veth, bridge, macvlan and VXLAN devices. Needs ip, unshare, nsenter, python3,
#           /dev/net/tun, and leave to make user namespaces (or root). All traffic stays in namespaces of its own.
# Expected: all Ethernet devices count the same octets of a frame, sent or received.
# Seen:     a bridge counts 1000 octets of a frame that it sends, and 986 of one that it receives: without the Ethernet
#           header. A VXLAN device counts 986 both ways. TAP, veth and macvlan count 1000 both ways. Who adds up bytes
#           of both directions, or of a bridge and its ports, finds bytes lost that no counter says are lost.
set -eu
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare -Urn sh "$0"
fi
unshare -n sleep 300 & far=$!
trap 'kill $far' EXIT
# The helper is ready once its network namespace is no longer this one.
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done

ip link add under0 mtu 1600 type veth peer name under1 mtu 1600 netns "$far"
for side in self "$far"; do
    if [ "$side" = self ]; then enter=""; near=1; peer=2; else enter="nsenter -t $far -n"; near=2; peer=1; fi
    # Nothing but the frames of this script is on the way.
    $enter sh -euc 'for of in all default; do echo 1 >/proc/sys/net/ipv6/conf/$of/disable_ipv6; done'
    $enter ip addr add "192.0.2.$near/24" dev "under$((near - 1))"
    $enter ip link set "under$((near - 1))" up
    $enter ip link add vxlan0 type vxlan id 100 local "192.0.2.$near" remote "192.0.2.$peer" dstport 4789
    $enter ip link set vxlan0 up
done
ip link add veth0 type veth peer name veth1
ip link add bridge0 type bridge mcast_snooping 0
ip link add macvlan0 link veth1 type macvlan mode private

FAR=$far python3 - <<'PYTHON'
import fcntl, json, os, platform, socket, struct, subprocess, time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000
FAR = ["nsenter", "-t", os.environ["FAR"], "-n"]


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def link(name, enter=()):
    shown = subprocess.run([*enter, "ip", "-j", "-s", "link", "show", name], check=True, capture_output=True).stdout
    return json.loads(shown)[0]


def frame(to):
    # 0x88b5 is an EtherType for experiments.
    return (bytes.fromhex(to.replace(":", "") + "020000000001" + "88b5")).ljust(1000, b"\0")


def send(name, to="ff:ff:ff:ff:ff:ff"):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((name, 0))
        sender.send(frame(to))


def counted(name, way, act, enter=()):
    """How many octets the interface counts of the one frame that `act` moves."""
    before = link(name, enter)["stats64"][way]
    act()
    time.sleep(0.3)
    after = link(name, enter)["stats64"][way]
    assert after["packets"] - before["packets"] == 1, (name, way, before, after)
    return after["bytes"] - before["bytes"]


tap0, port0 = tap("tap0"), tap("port0")
subprocess.run(["ip", "link", "set", "port0", "master", "bridge0"], check=True)
for name in ("tap0", "port0", "bridge0", "veth0", "veth1", "macvlan0"):
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
time.sleep(1)


def send_and_read():
    send("tap0")
    assert len(os.read(tap0, 2048)) == 1000


seen = {
    "TAP": (counted("tap0", "tx", send_and_read),
            counted("tap0", "rx", lambda: os.write(tap0, frame(link("tap0")["address"])))),
    "veth": (counted("veth0", "tx", lambda: send("veth0", link("veth1")["address"])),
             counted("veth1", "rx", lambda: send("veth0", link("veth1")["address"]))),
    "bridge": (counted("bridge0", "tx", lambda: send("bridge0")),
               counted("bridge0", "rx", lambda: os.write(port0, frame(link("bridge0")["address"])))),
    "macvlan": (counted("macvlan0", "tx", lambda: send("macvlan0", "02:00:00:00:00:02")),
                counted("macvlan0", "rx", lambda: send("veth0", link("macvlan0")["address"]))),
    "VXLAN": (counted("vxlan0", "tx", lambda: send("vxlan0")),
              counted("vxlan0", "rx", lambda: send("vxlan0"), FAR)),
}
print("kernel", platform.release())
for name, (tx, rx) in seen.items():
    print("%-7s sent %d, received %d" % (name, tx, rx))
assert seen == {"TAP": (1000, 1000), "veth": (1000, 1000), "bridge": (1000, 986), "macvlan": (1000, 1000),
                "VXLAN": (986, 986)}, "the behaviour has changed"
PYTHON
