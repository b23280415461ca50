#!/bin/sh
# A bridge's port with a lower MTU than the two hosts that speak through it.
#
# Subject:  Linux (seen on 6.18), bridge and veth. Needs ip, unshare, nsenter and python3, and leave to make user
#           namespaces (or root). All traffic stays in namespaces of its own.
# Expected: the port's MTU of 1300 lets all packets of 1428 octets pass, or none, and what it drops is counted.
# Seen:     ten datagrams that are sent one by one are all dropped, and no interface counts them. The same ten arrive
#           when one call sends them (UDP_SEGMENT): the bridge measures no frame that is still to be cut. So it is
#           with TCP, where everybody sends so: a write of one segment never arrives, a write of two does. A long
#           transfer looks well, and a short question has no answer.
set -eu
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare -Urn sh "$0"
fi
unshare -n sleep 300 & one=$!
unshare -n sleep 300 & other=$!
trap 'kill $one $other' EXIT
# A helper is ready once its network namespace is no longer this one.
for pid in $one $other; do
    until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
done

ip link add br0 type bridge
ip link add port1 type veth peer name host1 netns "$one"
ip link add port2 type veth peer name host2 netns "$other"
ip link set port2 mtu 1300
for port in port1 port2; do ip link set "$port" master br0 up; done
ip link set br0 up
nsenter -t "$one" -n sh -euc 'ip addr add 192.0.2.1/24 dev host1; ip link set host1 up'
nsenter -t "$other" -n sh -euc 'ip addr add 192.0.2.2/24 dev host2; ip link set host2 up'

python3 - "$one" "$other" <<'PYTHON'
import ctypes, json, os, platform, socket, subprocess, sys

CLONE_NEWNET, UDP_SEGMENT, TCP_MAXSEG = 0x40000000, 103, 2
libc = ctypes.CDLL(None, use_errno=True)
one, other = sys.argv[1:]
hosts = {pid: os.open(f"/proc/{pid}/ns/net", os.O_RDONLY) for pid in (one, other)}


def sock(pid, kind):
    """A socket of that host. The process stays in the last host's namespace."""
    assert libc.setns(hosts[pid], CLONE_NEWNET) == 0
    made = socket.socket(socket.AF_INET, kind)
    made.settimeout(2)
    return made


def drops():
    """All that any of the five interfaces counts as dropped or wrong."""
    total = 0
    for enter in ([], ["nsenter", "-t", one, "-n"], ["nsenter", "-t", other, "-n"]):
        shown = subprocess.run([*enter, "ip", "-j", "-s", "link"], check=True, capture_output=True).stdout
        for link in json.loads(shown):
            for way in link["stats64"].values():
                total += sum(count for name, count in way.items() if name not in ("bytes", "packets", "multicast"))
    return total


def received(reader):
    sizes = []
    try:
        while True:
            sizes.append(len(reader.recv(65536)))
    except TimeoutError:
        return sizes


# The counts come before `setns`: `ip` runs in the namespace of the caller.
print("kernel", platform.release())
before = drops()
own = os.open("/proc/self/ns/net", os.O_RDONLY)
reader = sock(other, socket.SOCK_DGRAM)
reader.bind(("192.0.2.2", 9))
sender = sock(one, socket.SOCK_DGRAM)
sender.connect(("192.0.2.2", 9))
sender.send(b"first")
assert received(reader) == [5], "no way from host to host"
for _ in range(10):
    sender.send(bytes(1400))
alone = received(reader)
sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1400)
sender.send(bytes(14000))
train = received(reader)

listener = sock(other, socket.SOCK_STREAM)
listener.bind(("192.0.2.2", 9))
listener.listen()


def by_tcp(segments):
    with sock(one, socket.SOCK_STREAM) as client:
        client.connect(("192.0.2.2", 9))
        server, _ = listener.accept()
        server.settimeout(3)
        # TCP_MAXSEG says how much data a segment has here, beside its options.
        client.send(bytes(segments * client.getsockopt(socket.IPPROTO_TCP, TCP_MAXSEG)))
        size = sum(received(server))
        server.close()
        return size


tcp = [by_tcp(segments) for segments in (1, 2)]
assert libc.setns(own, CLONE_NEWNET) == 0
after = drops()
print("ten datagrams of 1400 octets, one by one:", alone)
print("ten datagrams of 1400 octets, by one call:", train)
print("TCP, a write of one segment: %d octets arrive; of two: %d" % tuple(tcp))
print("counted as dropped or wrong by any interface:", after - before)
assert (alone, train, tcp[0], after - before) == ([], [1400] * 10, 0, 0) and tcp[1] > 2800, "the behaviour has changed"
PYTHON
