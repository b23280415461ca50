#!/bin/sh
# xl's hotplug script. The kernel's back end has made an interface, which goes on the bridge; a back end
# in user space has none.
if [ "$1" = online ]; then
  if [ -e "/sys/class/net/$vif" ]; then
    ip link set "$vif" master br0 up
  fi
  xenstore-write "$XENBUS_PATH/hotplug-status" connected
fi
exit 0
