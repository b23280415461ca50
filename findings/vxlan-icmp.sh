#!/bin/sh
# Who tells a station behind a bridge that its packet is too large for a VXLAN tunnel.
#
# Subject:  Linux (seen on 6.18), VXLAN device as port of a bridge. Needs ip, unshare, nsenter and python3, and leave to
#           make user namespaces (or root). All traffic stays in namespaces of its own.
# Expected: nobody, as with any bridge. Or a host that has the tunnel, from an address of its own.
# Seen:     "fragmentation needed", and its sender is the station that the packet was for, by IP and Ethernet address.
#           It has sent nothing: here it does not even exist. A capture at a real one would not have the answer, and its
#           firewall has no say. A packet that may be cut (no DF) is answered by nobody.
set -eu
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare -Urn sh "$0"
fi
unshare -n sleep 300 & station=$!
trap 'kill $station' EXIT
# The helper is ready once its network namespace is no longer this one.
until [ "$(readlink /proc/$station/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done

# The tunnel goes over an MTU of 1500, and was given the stations' 1500 for its own.
ip link add under0 type veth peer name under1
ip addr add 192.0.2.1/24 dev under0
ip link add vxlan0 mtu 1500 type vxlan id 100 local 192.0.2.1 remote 192.0.2.2 dstport 4789
ip link add bridge0 type bridge
ip link add port0 type veth peer name station0 netns "$station"
for port in vxlan0 port0; do ip link set "$port" master bridge0; done
for name in under1 under0 vxlan0 port0 bridge0; do ip link set "$name" up; done
nsenter -t "$station" -n sh -euc 'ip addr add 198.51.100.1/24 dev station0; ip link set station0 up
    ip neigh add 198.51.100.2 lladdr 02:00:00:00:00:02 dev station0'

nsenter -t "$station" -n python3 - <<'PYTHON'
import platform, socket, time

ETH_P_ALL, IP_MTU_DISCOVER, DONT, PROBE = 3, 10, 0, 3
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
wire.bind(("station0", ETH_P_ALL))


def answers(size, discover):
    """The ICMP answers to a packet of that size: type, code, next hop's MTU, and both addresses of the sender."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, discover)
    sender.sendto(bytes(size - 28), ("198.51.100.2", 9))
    time.sleep(1)
    wire.setblocking(False)
    seen = []
    try:
        while True:
            frame, (_, _, kind, *_) = wire.recvfrom(2048)
            packet = frame[14:]
            if kind == socket.PACKET_OUTGOING or frame[12:14] != b"\x08\x00" or packet[9] != socket.IPPROTO_ICMP:
                continue
            icmp = packet[4 * (packet[0] & 15):]
            seen.append((*icmp[:2], int.from_bytes(icmp[6:8], "big"), socket.inet_ntoa(packet[12:16]),
                         frame[6:12].hex(":")))
    except BlockingIOError:
        return seen


print("kernel", platform.release())
# PROBE has DF set, whatever was learnt before.
seen = {"1450, DF": answers(1450, PROBE), "1500, no DF": answers(1500, DONT), "1500, DF": answers(1500, PROBE)}
for packet, told in seen.items():
    print("a packet of %s: %s" % (packet, told))
error = (3, 4, 1450, "198.51.100.2", "02:00:00:00:00:02")
assert seen == {"1450, DF": [], "1500, no DF": [], "1500, DF": [error]}, "the behaviour has changed"
PYTHON
