#!/bin/sh
# A UDP checksum that comes out as zero, written by three packet libraries.
#
# Packages: PyPI scapy 2.8.0, dpkt 1.9.8, os-ken 4.2.2.
# Expected: all three write 0xffff. RFC 768 reserves zero for "no checksum", and RFC 8200 (8.1) tells receivers
#           to discard a UDP packet over IPv6 whose checksum is zero.
# Seen:     scapy writes 0xffff. dpkt does so over IPv4, and writes 0 over IPv6. os-ken writes 0 over both.
#           One packet in 65,536 that these two build for IPv6 is thrown away by its receiver.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --no-cache-dir scapy==2.8.0 dpkt==1.9.8 os-ken==4.2.2

"$tmp/venv/bin/python" - <<'PYTHON' 2>"$tmp/err" || { cat "$tmp/err" >&2; exit 1; }
import socket, struct
import dpkt
from os_ken.lib.packet import ipv4, ipv6, packet, udp
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

def ones_sum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total

def checksum_field(datagram):
    return struct.unpack("!H", datagram[6:8])[0]

HEADER = struct.pack("!HHHH", 1000, 2000, 10, 0)
seen = {}
for family, src, dst in (("IPv4", "10.0.0.1", "10.0.0.2"), ("IPv6", "2001:db8::1", "2001:db8::2")):
    six = family == "IPv6"
    af = socket.AF_INET6 if six else socket.AF_INET
    a, b = socket.inet_pton(af, src), socket.inet_pton(af, dst)
    pseudo = a + b + struct.pack("!HH", 17, 10)
    # Two bytes of payload that bring the sum to 0xffff, whose complement is zero.
    payload = struct.pack("!H", 0xffff - ones_sum(pseudo + HEADER))

    by_scapy = bytes((IPv6 if six else IP)(src=src, dst=dst) / UDP(sport=1000, dport=2000) / payload)
    seen["scapy", family] = checksum_field(by_scapy[40 if six else 20:])

    inner = dpkt.udp.UDP(sport=1000, dport=2000, ulen=10, data=payload)
    if six:
        outer = dpkt.ip6.IP6(src=a, dst=b, nxt=17, plen=10, hlim=64, data=inner)
        outer.extension_hdrs, outer.all_extension_headers = {}, []
    else:
        outer = dpkt.ip.IP(src=a, dst=b, p=17, data=inner)
    seen["dpkt", family] = checksum_field(bytes(outer)[40 if six else 20:])

    p = packet.Packet()
    p.add_protocol(ipv6.ipv6(src=src, dst=dst, nxt=17) if six else ipv4.ipv4(src=src, dst=dst, proto=17))
    p.add_protocol(udp.udp(1000, 2000))
    p.add_protocol(payload)
    p.serialize()
    seen["os-ken", family] = checksum_field(bytes(p.data)[40 if six else 20:])

for (library, family), value in sorted(seen.items()):
    print("%-7s %s  checksum 0x%04x" % (library, family, value))
assert seen == {
    ("scapy", "IPv4"): 0xffff, ("scapy", "IPv6"): 0xffff,
    ("dpkt", "IPv4"): 0xffff, ("dpkt", "IPv6"): 0,
    ("os-ken", "IPv4"): 0, ("os-ken", "IPv6"): 0,
}, "the behaviour has changed"
PYTHON
