#!/bin/sh
# A DHCP option that comes in two parts.
#
# Packages: PyPI scapy 2.6.1, dpkt 1.9.8, dhcppython 0.1.4; Go insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae.
#           Needs go.
# Expected: one domain name, `internal`. RFC 3396: parts with the same code are joined before they are read. A search
#           list or a list of routes above 255 bytes can only come so.
# Seen:     insomniacslk joins them. scapy and dpkt give two options; dhcppython keeps the last part and says nothing.
set -eu
tmp=$(mktemp -d)
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
cd "$tmp"
python3 -m venv venv
venv/bin/pip install -q --no-cache-dir scapy==2.6.1 dpkt==1.9.8 dhcppython==0.1.4
export GOPATH="$tmp/go" GOCACHE="$tmp/cache" GOFLAGS=-mod=mod
cat >go.mod <<'MOD'
module parts

go 1.21

require github.com/insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae
MOD
cat >main.go <<'GO'
package main

import (
	"encoding/hex"
	"fmt"
	"os"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

func main() {
	wire, _ := hex.DecodeString(os.Args[1])
	message, err := dhcpv4.FromBytes(wire)
	fmt.Printf("insomniacslk %v %q\n", err, message.DomainName())
}
GO
cat >read.py <<'PYTHON'
import socket, struct, sys
# An ACK for 192.0.2.10, with `inter` and `nal` as two options 15.
options = bytes.fromhex("350105") + b"\x0f\x05inter" + b"\x0f\x03nal" + b"\xff"
head = struct.pack("!BBBBIHH", 2, 1, 6, 0, 0x1234, 0, 0)
head += b"".join(map(socket.inet_aton, ["0.0.0.0", "192.0.2.10", "192.0.2.1", "0.0.0.0"]))
head += bytes.fromhex("020000000001").ljust(16, b"\0") + bytes(64 + 128)
wire = head + bytes.fromhex("63825363") + options
if sys.argv[1:] == ["hex"]:
    print(wire.hex())
    sys.exit()
import dhcppython, dpkt
from scapy.layers.dhcp import BOOTP, DHCP
print("scapy", [option for option in BOOTP(wire)[DHCP].options if option[0] == "domain"])
print("dpkt", [option for option in dpkt.dhcp.DHCP(wire).opts if option[0] == 15])
print("dhcppython", dhcppython.packet.DHCPPacket.from_bytes(wire).options.as_dict()["domain_name"])
PYTHON
{
    venv/bin/python read.py
    go run . "$(venv/bin/python read.py hex)" 2>go.log || { cat go.log; exit 1; }
} >seen
cat seen
diff - seen <<'EXPECTED'
scapy [('domain', b'inter'), ('domain', b'nal')]
dpkt [(15, b'inter'), (15, b'nal')]
dhcppython nal
insomniacslk <nil> "internal"
EXPECTED
