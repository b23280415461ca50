#!/bin/sh
# What two Prometheus parsers call a counter whose name does not end in _total.
#
# Packages: PyPI prometheus-client 0.26.0; Go github.com/prometheus/common v0.74.0 (expfmt).
# Expected: both readers of the text format give the sample the name that stands in the text.
# Seen:     Go's gives `frames`. Python's gives `frames_total`, a series that nobody exposes: a test that looks a
#           name up with this parser passes for a name that Prometheus never stores. Other types keep their names.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --no-cache-dir prometheus-client==0.26.0

export GOPATH="$tmp/go" GOCACHE="$tmp/cache" GOFLAGS="-mod=mod -modcacherw" GOTOOLCHAIN=local
mkdir "$tmp/read"
cat >"$tmp/read/main.go" <<'GO'
package main

import (
	"fmt"
	"os"
	"sort"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func main() {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(os.Stdin)
	if err != nil {
		panic(err)
	}
	var names []string
	for name := range families {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Println("go", names)
}
GO
cat >"$tmp/read.py" <<'PYTHON'
import sys
from prometheus_client.parser import text_fd_to_metric_families
names = sorted(s.name for family in text_fd_to_metric_families(sys.stdin) for s in family.samples)
print("python [%s]" % " ".join(names))
PYTHON
cd "$tmp/read"
go mod init example.test/read 2>/dev/null
go get github.com/prometheus/common/expfmt@v0.74.0 2>/dev/null
go build -o "$tmp/reader" .

cd "$tmp"
cat >metrics <<'TEXT'
# TYPE frames counter
frames 7
# TYPE ports gauge
ports 3
TEXT
{ ./reader <metrics; venv/bin/python read.py <metrics; } >seen
cat seen
printf '%s\n' 'go [frames ports]' 'python [frames_total ports]' | diff - seen
