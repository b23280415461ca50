# Everything a person types. The work is done by cargo and by xtask.

CARGO ?= cargo
XTASK = $(CARGO) run --quiet -p xtask --

.PHONY: help libpcap demo demo-vm build test test-xen soak bench lab-report lab-sensitivity fmt clean

help: ## Show these targets
	@sed -n "s/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p" $(MAKEFILE_LIST) | expand -t 18

# xtask sees to it itself.
libpcap:
	@pkg-config --exists libpcap 2>/dev/null || test -e /usr/include/pcap.h || \
		{ echo "weir is linked with libpcap: apt-get install libpcap-dev" >&2; exit 1; }

demo: libpcap ## See weir at work: built-in guests, no VM, no root (20 s)
	$(CARGO) run --release -p weir -- demo

demo-vm: ## The same with two real Linux guests under QEMU (needs root)
	$(XTASK) demo-vm

build: libpcap ## Build weir as it ships
	$(CARGO) build --release -p weir

test: ## Format, lints, unit tests, model checks and, as root, real guests
	$(XTASK) test

test-xen: ## weir on a real Xen, against the kernel's back end (3 minutes)
	$(XTASK) xen

soak: libpcap ## Hosts by chance on which things go wrong, until Ctrl-C
	$(CARGO) run --release -p weir -- lab soak

bench: ## Measure weir against its peers (needs root, some 25 minutes)
	$(XTASK) bench

lab-report: libpcap ## Run the lab's experiments; write docs/lab and target/lab-report.html
	rm -rf docs/lab
	$(CARGO) run --release -p weir -- lab report --all --markdown docs/lab --html target/lab-report.html

lab-sensitivity: libpcap ## The same page with each fitted cost varied: target/lab-sensitivity.html, some 25 times the work
	$(CARGO) run --release -p weir -- lab report --all --sensitivity --html target/lab-sensitivity.html

fmt: ## Format the code
	$(CARGO) fmt --all

clean: ## Remove everything that was built or measured
	$(CARGO) clean
