#!/bin/sh
# guest NAME COMMAND: runs COMMAND in the guest's shell, at its console; prints what that prints, and ends
# as it ends. guest NAME alone waits until the guest takes commands; guest NAME '' only finds the console, of a
# guest that goes on as another domain.
name=$1
if [ -z "$2" ]; then
  until tty=$(xenstore-read "/local/domain/$(xl domid "$name")/console/tty" 2>/dev/null); do sleep 0.1; done
  echo "$tty" >"/run/console-$name"
  [ $# = 1 ] || exit 0
  exec 3<>"$tty"
  while read -r line <&3; do
    case $line in *@@ready*) exit 0 ;; esac
  done
  exit 1
fi
exec 3<>"$(cat "/run/console-$name")"
id=$$
echo "$id $2" >&3
while read -r line <&3; do
  case $line in
    *"@@$id "*)
      # The marker follows output that did not end its last line.
      printf '%s' "${line%%@@"$id" *}"
      exit "${line##* }"
      ;;
    *) printf '%s\n' "$line" ;;
  esac
done
exit 1
