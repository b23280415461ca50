#!/bin/sh
# What a socket that ignores the path MTU teaches the sockets that do not.
#
# Subject:  Linux (seen on 6.18), IP_PMTUDISC_PROBE and IPV6_PMTUDISC_PROBE. Needs ip, unshare, nsenter and python3, and
#           leave to make user namespaces (or root). All traffic stays in namespaces of its own.
# Expected: PROBE sends at the size of the interface, whatever the path MTU, and leaves the host's path MTU alone: the
#           prober keeps the books itself. So the manual's "ignore path MTU" reads.
# Seen:     the answer to an oversized probe enters the host's cache, over IPv4 and IPv6 alike. A new, ordinary
#           socket to the same peer starts at 1300 instead of 1500. The prober itself may still send 1400 octets.
set -eu
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare -Urn sh "$0"
fi
unshare -n sleep 300 & router=$!
unshare -n sleep 300 & host=$!
trap 'kill $router $host' EXIT
# A helper is ready once its network namespace is no longer this one.
for pid in $router $host; do
    until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
done

# Here --1500-- router --1300-- host
ip link add near0 type veth peer name near1 netns "$router"
nsenter -t "$router" -n ip link add far0 mtu 1300 type veth peer name far1 mtu 1300 netns "$host"
ip link set near0 up
ip addr add 192.0.2.1/24 dev near0
ip addr add 2001:db8:1::1/64 dev near0 nodad
nsenter -t "$router" -n sh -eu <<'ROUTER'
ip link set near1 up
ip addr add 192.0.2.2/24 dev near1
ip addr add 2001:db8:1::2/64 dev near1 nodad
ip link set far0 up
ip addr add 198.51.100.2/24 dev far0
ip addr add 2001:db8:2::2/64 dev far0 nodad
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
ROUTER
nsenter -t "$host" -n sh -eu <<'HOST'
ip link set far1 up
ip addr add 198.51.100.1/24 dev far1
ip addr add 2001:db8:2::1/64 dev far1 nodad
ip route add default via 198.51.100.2
ip route add default via 2001:db8:2::2
HOST
ip route add default via 192.0.2.2
ip route add default via 2001:db8:1::2

python3 - <<'PYTHON'
import platform, select, socket

PROBE = 3
print("kernel", platform.release())
seen = []
# The numbers of IP_/IPV6_MTU_DISCOVER, _MTU and _RECVERR, which Python does not name.
for family, level, discover, mtu, errors, peer in (
    (socket.AF_INET, socket.IPPROTO_IP, 10, 14, 11, "198.51.100.1"),
    (socket.AF_INET6, socket.IPPROTO_IPV6, 23, 24, 25, "2001:db8:2::1"),
):
    def ordinary():
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.connect((peer, 9))
            return s.getsockopt(level, mtu)

    before = ordinary()
    prober = socket.socket(family, socket.SOCK_DGRAM)
    prober.setsockopt(level, discover, PROBE)
    prober.setsockopt(level, errors, 1)
    prober.connect((peer, 9))
    prober.send(bytes(1400))
    # The router's answer shows as an error of the socket.
    poll = select.poll()
    poll.register(prober, 0)
    assert poll.poll(60000), "the router did not answer"
    prober.recvmsg(2000, 1000, socket.MSG_ERRQUEUE)
    prober.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    again = prober.send(bytes(1400))
    seen.append((before, ordinary(), again))
    print("%s: an ordinary socket's MTU %d before the probe, %d after; the prober still sends %d"
          % (family.name, *seen[-1]))
assert seen == [(1500, 1300, 1400)] * 2, "the behaviour has changed"
PYTHON
