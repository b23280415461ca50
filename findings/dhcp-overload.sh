#!/bin/sh
# A DHCP answer whose host name and domain name lie in the fields for a server name and a boot file.
#
# Packages: PyPI scapy 2.6.1, dpkt 1.9.8, dhcppython 0.1.4; Go insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae,
#           gopacket v1.1.19. Needs go.
# Expected: a reader that knows option 52 (overload) by name goes on in `file` and `sname`. RFC 2131 (4.1) asks for it,
#           and servers do so when the options do not fit.
# Seen:     scapy and dhcppython decode option 52 in words, and none of the five finds the two options.
set -eu
tmp=$(mktemp -d)
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
cd "$tmp"
python3 -m venv venv
venv/bin/pip install -q --no-cache-dir scapy==2.6.1 dpkt==1.9.8 dhcppython==0.1.4
export GOPATH="$tmp/go" GOCACHE="$tmp/cache" GOFLAGS=-mod=mod
cat >go.mod <<'MOD'
module overload

go 1.21

require (
	github.com/google/gopacket v1.1.19
	github.com/insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae
)
MOD
cat >main.go <<'GO'
package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func main() {
	wire, _ := hex.DecodeString(os.Args[1])
	message, err := dhcpv4.FromBytes(wire)
	fmt.Printf("insomniacslk %v %q %q\n", err, message.HostName(), message.DomainName())
	layer := gopacket.NewPacket(wire, layers.LayerTypeDHCPv4, gopacket.Default).Layer(layers.LayerTypeDHCPv4)
	text := fmt.Sprint(layer.(*layers.DHCPv4).Options)
	fmt.Println("gopacket", strings.Contains(text, "web0"), strings.Contains(text, "internal"))
}
GO
cat >message.py <<'PYTHON'
import socket, struct
# An ACK for 192.0.2.10. Option 52 = 3: `sname` holds a host name (12), `file` a domain name (15).
options = bytes.fromhex("350105" "340103" "3604c0000201" "ff")
head = struct.pack("!BBBBIHH", 2, 1, 6, 0, 0x1234, 0, 0)
head += b"".join(map(socket.inet_aton, ["0.0.0.0", "192.0.2.10", "192.0.2.1", "0.0.0.0"]))
head += bytes.fromhex("020000000001").ljust(16, b"\0")
head += b"\x0c\x04web0\xff".ljust(64, b"\0") + b"\x0f\x08internal\xff".ljust(128, b"\0")
wire = head + bytes.fromhex("63825363") + options
PYTHON
cat >read.py <<'PYTHON'
import sys
if sys.argv[1:] == ["hex"]:
    from message import wire
    print(wire.hex())
    sys.exit()
import dhcppython, dpkt
from message import wire
from scapy.layers.dhcp import BOOTP, DHCP
print("scapy", [option for option in BOOTP(wire)[DHCP].options if "overload" in str(option)])
text = repr(BOOTP(wire)[DHCP].options)
print("scapy", "web0" in text, "internal" in text)
text = repr(dpkt.dhcp.DHCP(wire).opts)
print("dpkt", "web0" in text, "internal" in text)
text = repr(dhcppython.packet.DHCPPacket.from_bytes(wire).options.as_dict())
print("dhcppython", "both fields are used to hold options" in text, "web0" in text, "internal" in text)
PYTHON
{
    venv/bin/python read.py
    go run . "$(venv/bin/python read.py hex)" 2>go.log || { cat go.log; exit 1; }
} >seen
cat seen
diff - seen <<'EXPECTED'
scapy [('dhcp-option-overload', 3)]
scapy False False
dpkt False False
dhcppython True False False
insomniacslk <nil> "" ""
gopacket false false
EXPECTED
