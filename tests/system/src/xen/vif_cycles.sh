#!/bin/sh
# vif-cycles NAME COUNT TOGETHER: gives a guest interfaces and takes them away again, TOGETHER at a time, until
# COUNT have come and gone. In xenstore that is what xl does (libxl_device.c); xl itself takes a second for each.
name=$1 count=$2 together=$3
id=$(xl domid "$name")
front=/local/domain/$id/device/vif
back=/local/domain/0/backend/vif/$id
# What is made below has their permissions: one end's to write, the other's to read.
xenstore-write "$front" "" "$back" ""
xenstore-chmod "$front" "n$id" r0
xenstore-chmod "$back" n0 "r$id"

# await STATE PATH...: waits until all are in that XenbusState (xen/io/xenbus.h). So many looks, and not so long: what
# a machine stood still for is nobody's fault. They take 60 s and more.
await() {
  state=$1 looks=0
  shift
  until [ "$(xenstore-read "$@" 2>/dev/null | sort -u)" = "$state" ]; do
    [ $((looks += 1)) -le 600 ] || {
      echo "not all in state $state: $*"
      xl list
      xenstore-ls "$front"
      xenstore-ls "$back"
      # What the guest says, if it still says anything.
      timeout 60 guest "$name" 'free; dmesg | tail -n 30'
      exit 1
    }
    sleep 0.05
  done
}

number=0
while [ $number -lt "$count" ]; do
  attach='' detach='' fronts='' backs='' gone='' in_round=0
  while [ $in_round -lt "$together" ] && [ $number -lt "$count" ]; do
    number=$((number + 1)) in_round=$((in_round + 1))
    # Each has a number of its own: a guest may look only when the next one of that number is there.
    f=$front/$number b=$back/$number
    mac=$(printf '02:00:00:00:%02x:%02x' $((number / 256)) $((number % 256)))
    attach="$attach $b/frontend $f $b/frontend-id $id $b/online 1 $b/handle $number $b/mac $mac $b/bridge br0 $b/state 1"
    attach="$attach $f/backend $b $f/backend-id 0 $f/handle $number $f/mac $mac $f/state 1"
    detach="$detach $b/online 0 $b/state 5"
    fronts="$fronts $f/state" backs="$backs $b/state" gone="$gone $f $b"
  done
  # shellcheck disable=SC2086 # lists of words
  xenstore-write $attach && await 4 $fronts && xenstore-write $detach && await 6 $backs && xenstore-rm $gone || exit 1
done
