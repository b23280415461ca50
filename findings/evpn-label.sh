#!/bin/sh
# One EVPN MAC/IP route (RFC 7432, type 2), written by one BGP speaker's library and read by the other's.
#
# Packages: Go github.com/osrg/gobgp/v4 v4.8.0; PyPI exabgp 5.0.15.
# Expected: "label 100" is the same three octets for both. A reader gives both labels of a route that has two
#           (the layer-2 and the layer-3 VNI of RFC 9135).
# Seen:     what ExaBGP writes as 100 is 1601 for GoBGP: one has the label of MPLS in mind (20 bits and the bottom
#           of stack), the other the VNI of RFC 8365 (24 bits). Read by ExaBGP, GoBGP's two labels 100 and 5000
#           are one label, 6, and the second is gone.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --no-cache-dir exabgp==5.0.15

export GOPATH="$tmp/go" GOCACHE="$tmp/cache" GOFLAGS="-mod=mod -modcacherw" GOTOOLCHAIN=local
mkdir "$tmp/gobgp"
cat >"$tmp/gobgp/main.go" <<'GO'
package main

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func main() {
	if len(os.Args) > 1 { // Reads a route.
		route := must(bgp.NLRIFromSlice(bgp.RF_EVPN, must(hex.DecodeString(os.Args[1]))))
		fmt.Println(route.(*bgp.EVPNNLRI).RouteTypeData.(*bgp.EVPNMacIPAdvertisementRoute).Labels)
		return
	}
	rd := bgp.NewRouteDistinguisherTwoOctetAS(65000, 1)
	ip := netip.MustParseAddr("192.0.2.1")
	esi, labels := bgp.EthernetSegmentIdentifier{}, []uint32{100, 5000}
	route := must(bgp.NewEVPNMacIPAdvertisementRoute(rd, esi, 0, "02:00:00:00:00:01", ip, labels))
	fmt.Println(hex.EncodeToString(must(route.Serialize())))
}
GO
cat >"$tmp/speaker.py" <<'PYTHON'
import sys
from exabgp.bgp.message.update.nlri.evpn.mac import MAC
from exabgp.bgp.message.update.nlri.qualifier import ESI, EthernetTag, Labels, MAC as Address, RouteDistinguisher
from exabgp.protocol.ip import IP

if len(sys.argv) > 1:  # Reads a route: two octets of type and length, then its fields.
    print(MAC.unpack(bytes.fromhex(sys.argv[1])[2:]).label.labels)
else:
    rd = RouteDistinguisher.unpack(bytes.fromhex("0000fde800000001"))
    label, ip = Labels([100]), IP.create("192.0.2.1")
    print(MAC(rd, ESI(), EthernetTag(0), Address("02:00:00:00:00:01"), 48, label, ip).pack_nlri().hex())
PYTHON
cd "$tmp/gobgp"
go mod init example.test/gobgp 2>/dev/null
go get github.com/osrg/gobgp/v4/pkg/packet/bgp@v4.8.0 2>/dev/null
go build -o "$tmp/by_gobgp" .

cd "$tmp"
by_exabgp() { venv/bin/python speaker.py "$@"; }
{
    echo "ExaBGP writes 100, GoBGP reads $(./by_gobgp "$(by_exabgp)")"
    echo "GoBGP writes 100 and 5000, ExaBGP reads $(by_exabgp "$(./by_gobgp)")"
    echo "GoBGP writes 100 and 5000, GoBGP reads $(./by_gobgp "$(./by_gobgp)")"
} >seen
cat seen
diff - seen <<'TEXT'
ExaBGP writes 100, GoBGP reads [1601]
GoBGP writes 100 and 5000, ExaBGP reads [6]
GoBGP writes 100 and 5000, GoBGP reads [100 5000]
TEXT
