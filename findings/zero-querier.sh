#!/bin/sh
# A multicast query from 0.0.0.0, at a bridge that asks with an address of its own.
#
# Subject:  Linux (seen on 6.18), bridge with `mcast_querier` and `mcast_query_use_ifaddr`. Needs ip, bridge, unshare
#           and python3, and leave to make user namespaces (or root). All traffic stays in a namespace of its own.
# Expected: the bridge goes on. A switch sends from 0.0.0.0 what it asks in a querier's place, so that nobody takes it
#           for a new querier, and the port that it comes from leads to no router (RFC 4541, 2.1.1).
# Seen:     0.0.0.0 counts as the lowest address, and wins: the bridge asks no more (for 255 s by default), and the port
#           leads to a router. It goes on after a query from a higher address. Linux's own bridges ask from 0.0.0.0
#           unless told otherwise. A third switch, which keeps to the RFC, then knows no way to a querier.
set -eu
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare -Urn sh "$0"
fi
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
ip link add bridge0 type bridge
ip link add port0 type veth peer name station0
ip link set port0 master bridge0 up
ip link set station0 up
ip addr add 192.0.2.11/24 dev bridge0
ip link set bridge0 up
# In hundredths of a second: 2 s from query to query, from the first on.
ip link set bridge0 type bridge mcast_query_interval 200 mcast_startup_query_interval 200 \
    mcast_query_use_ifaddr 1 mcast_querier 1
python3 - <<'PYTHON'
import json, platform, socket, struct, subprocess, time

QUERY, TO_ALL = 0x11, "224.0.0.1"
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("station0", 3))


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def ask(source):
    """A general query of IGMPv2, with 10 s to answer. The IP header has the router alert option."""
    igmp = bytearray.fromhex("1164000000000000")
    igmp[2:4] = struct.pack("!H", checksum(igmp))
    ip = bytearray(struct.pack("!BBHHHBBH", 0x46, 0xc0, 24 + len(igmp), 0, 0x4000, 1, socket.IPPROTO_IGMP, 0))
    ip += socket.inet_aton(source) + socket.inet_aton(TO_ALL) + bytes.fromhex("94040000")
    ip[10:12] = struct.pack("!H", checksum(ip))
    wire.send(bytes.fromhex("01005e000001" "020000000001" "0800") + ip + igmp)


def queries():
    """How many queries the bridge sends in 7 s."""
    asked, end = 0, time.monotonic() + 7
    while (left := end - time.monotonic()) > 0:
        wire.settimeout(left)
        try:
            frame, (_, _, kind, *_) = wire.recvfrom(2048)
        except TimeoutError:
            break
        packet = frame[14:]
        if kind != socket.PACKET_OUTGOING and frame[12:14] == b"\x08\x00" and packet[9] == socket.IPPROTO_IGMP:
            asked += packet[4 * (packet[0] & 15)] == QUERY and packet[12:16] == socket.inet_aton("192.0.2.11")
    return asked


def routers():
    shown = subprocess.run(["bridge", "-d", "-j", "mdb"], check=True, capture_output=True).stdout
    return [port["port"] for port in json.loads(shown)[0]["router"].get("bridge0", [])]


print("kernel", platform.release())
seen = []
for source in (None, "192.0.2.99", "0.0.0.0"):
    if source:
        ask(source)
        time.sleep(0.2)
    seen.append((queries(), routers()))
    print("after a query from %s: the bridge asks %d times in 7 s; ports to routers: %s"
          % (source or "nobody", *seen[-1]))
asked = [of for of, _ in seen]
assert min(asked[:2]) >= 2 and asked[2] == 0, "the behaviour has changed"
assert [ports for _, ports in seen] == [[], [], ["port0"]], "the behaviour has changed"
PYTHON
