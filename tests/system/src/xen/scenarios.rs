//! The tests on an actual Xen.

use std::time::Duration;

use weir_bed::{
    address,
    error::{Result, check},
};

use super::bed::{BackEnd, Bed, Domain, PATIENCE, WITH_CHANNEL, interface};

const FIRST: Domain = Domain(0);
const SECOND: Domain = Domain(1);

/// The user-space guest at weir: the number of its addresses, and its socket. See `weir.toml`.
const MIXED: u8 = 2;
const MIXED_SOCKET: &str = "/run/mixed.sock";

/// The front end in dom0: the number of its addresses, its interface, and its requested queues.
const CONTROL: u8 = 3;
const CONTROL_VIF: &str = "vif0.0";
const CONTROL_QUEUES: usize = 2;

/// The port of the connection that outlives its guest's move.
const LINES_PORT: u16 = 5001;

/// A vif is connected, disconnected, connected again, and served by a restarted back end, as with the test double.
pub fn vifs_come_and_go(bed: &mut Bed) -> Result<()> {
    let vifs = bed.spawn("vifs", "xen_vifs")?;
    bed.connect(FIRST)?;
    bed.await_lines(&vifs, "^connect vif.*a grant that is none: Some(.*InvalidInput", 1)?;
    for ring in ["tx", "rx"] {
        let compared = format!("^copy {ring} same=true bad=Refused(-3)$");
        bed.await_lines(&vifs, &compared, 1)?;
        bed.await_lines(&vifs, &format!("^event {ring} req_prod="), 1)?;
    }
    // The guest's receive buffers are posted, and the guest sends.
    bed.await_lines(&vifs, "^event rx req_prod=[1-9]", 1)?;
    let _unanswered =
        bed.run_in(FIRST, &format!("ping -c 1 -W 1 {}; true", SECOND.ip()), PATIENCE)?;
    bed.await_lines(&vifs, "^event tx req_prod=[1-9]", 1)?;
    check(bed.grants()?.mapped >= 2, || String::from("Xen knows of no ring that is mapped"))?;

    bed.detach(FIRST)?;
    bed.await_lines(&vifs, "^disconnect vif", 1)?;
    nothing_mapped(bed)?;
    bed.connect(FIRST)?;
    bed.await_lines(&vifs, "^connect vif", 2)?;

    bed.end(&vifs, "KILL")?;
    nothing_mapped(bed)?;
    // The front end is still connected. The new back end resumes with it in that state.
    let vifs = bed.spawn("vifs-again", "xen_vifs")?;
    bed.await_lines(&vifs, "^copy rx same=true", 1)?;
    bed.detach(FIRST)?;
    bed.await_lines(&vifs, "^disconnect vif", 1)?;
    nothing_mapped(bed)?;
    bed.end(&vifs, "TERM")
}

/// Guests ping each other through weir, one of them from its boot on: also after their interfaces were detached and
/// attached, and after weir was killed and restarted.
pub fn xen_boot_ping(bed: &mut Bed) -> Result<()> {
    bed.run("! grep -q ^xen_netback /proc/modules", PATIENCE)?;
    let weir = BackEnd::weir(bed)?;
    bed.connect(FIRST)?;
    bed.connect(SECOND)?;
    ping_both_ways(bed)?;
    bed.detach(SECOND)?;
    bed.connect(SECOND)?;
    ping_both_ways(bed)?;
    let weir = weir.crash_and_restart(bed, nothing_mapped)?;
    ping_both_ways(bed)?;
    disconnect_all(bed)?;
    weir.stop(bed)
}

/// weir keeps no grant after any number of attached interfaces and any end of weir.
pub fn weir_keeps_no_grant(bed: &mut Bed) -> Result<()> {
    let weir = BackEnd::weir(bed)?;
    bed.connect(FIRST)?;
    bed.connect(SECOND)?;
    ping_both_ways(bed)?;
    check(bed.grants()?.mapped > 0, || String::from("Xen knows of no ring that is mapped"))?;
    bed.detach(FIRST)?;
    bed.attach_and_detach(FIRST)?;
    bed.detach(SECOND)?;
    nothing_mapped(bed)?;

    bed.connect(FIRST)?;
    let weir = weir.crash_and_restart(bed, nothing_mapped)?;
    bed.detach(FIRST)?;
    nothing_mapped(bed)?;
    weir.stop(bed)
}

/// A vhost-user guest and a Xen guest on one switch.
pub fn xen_mixed(bed: &mut Bed) -> Result<()> {
    let weir = BackEnd::weir(bed)?;
    bed.connect(FIRST)?;
    let mac = address::mac(MIXED);
    let answer =
        bed.spawn("answer", &format!("guests answer {MIXED_SOCKET} {mac} {}", address::ip(MIXED)))?;
    bed.await_lines(&answer, "^answering", 1)?;
    for payload in [56, 1472] {
        ping(bed, FIRST, &address::ip(MIXED), payload)?;
    }
    bed.end(&answer, "TERM")?;
    bed.detach(FIRST)?;
    weir.stop(bed)
}

/// A front end with a control ring, in dom0 itself, is served by the hash and the table that it has set.
pub fn xen_control_ring(bed: &mut Bed) -> Result<()> {
    let weir = BackEnd::weir_with_queues(bed, CONTROL_QUEUES)?;
    bed.attach_to_dom0(&address::mac(CONTROL))?;
    let mac = address::mac(MIXED);
    let front = bed.spawn("control", &format!("xen_control 0 {MIXED_SOCKET} {mac}"))?;
    bed.await_lines(&front, "^ready", 1)?;
    let explained = bed.weir(&format!("explain {CONTROL_VIF}"))?;
    check(explained.contains("indirection table: the guest's own"), || {
        format!("weir knows of no table of {CONTROL_VIF}'s:\n{explained}")
    })?;
    check(bed.grants()?.mapped > 0, || String::from("Xen knows of no ring that is mapped"))?;
    bed.detach_from_dom0()?;
    bed.await_lines(&front, "^closed", 1)?;
    nothing_mapped(bed)?;
    weir.stop(bed)
}

/// A guest's agent is reached by a channel, makes the guest poll, and restores the guest's timer when weir or the
/// agent ends.
pub fn xen_agent(bed: &mut Bed) -> Result<()> {
    let weir = BackEnd::weir(bed)?;
    bed.connect(FIRST)?;
    bed.connect(WITH_CHANNEL)?;
    // The first channel is not there where `xl` has dropped it (4.17), and the agent's is the last one.
    let consoles = format!("/local/domain/$(xl domid {})/device/console", WITH_CHANNEL.name());
    let consoles = bed.run(&format!("xenstore-list {consoles}"), PATIENCE)?.lines().count();
    let agent = format!("weir-agent --port /dev/hvc{consoles} >/tmp/agent.log 2>&1 &");
    bed.run_in(WITH_CHANNEL, &agent, PATIENCE)?;
    guest_polls(bed, false)?;
    have_guest_poll(bed)?;
    ping(bed, FIRST, &WITH_CHANNEL.ip(), 56)?;

    // No weir is connected to make requests, and a new weir does not know earlier requests.
    let weir = weir.crash_and_restart(bed, |bed| guest_polls(bed, false))?;
    have_guest_poll(bed)?;
    ping(bed, FIRST, &WITH_CHANNEL.ip(), 1472)?;
    bed.run_in(WITH_CHANNEL, "killall weir-agent", PATIENCE)?;
    guest_polls(bed, false)?;

    bed.destroy(WITH_CHANNEL)?;
    bed.detach(FIRST)?;
    nothing_mapped(bed)?;
    weir.stop(bed)
}

/// A guest that is saved and restored as another domain continues as before, and reaches another
/// guest by the interface of the new domain. Its connection has lost nothing, nor when an interface with a rate comes
/// and goes beside it.
pub fn xen_guest_is_saved_and_restored(bed: &mut Bed) -> Result<()> {
    let weir = BackEnd::weir(bed)?;
    bed.connect(FIRST)?;
    bed.connect(SECOND)?;
    ping_both_ways(bed)?;
    bed.run_in(FIRST, "echo kept >/tmp/kept", PATIENCE)?;
    send_lines(bed)?;
    let before = bed.vif(FIRST)?;
    bed.save_and_restore(FIRST)?;
    let after = bed.vif(FIRST)?;
    check(before != after, || format!("the guest has {before} as before"))?;
    let kept = bed.run_in(FIRST, "cat /tmp/kept", PATIENCE)?;
    check(kept.trim() == "kept", || format!("the guest has lost its memory: {kept}"))?;
    // The guest's driver connects again by itself.
    let reaches = format!(
        "i=0; until ping -c 1 -W 1 {} >/dev/null; do [ $((i+=1)) -lt 40 ] || exit 1; done",
        SECOND.ip()
    );
    bed.run_in(FIRST, &reaches, PATIENCE)?;
    ping_both_ways(bed)?;
    let stats = bed.weir("stats")?;
    check(!stats.contains(&before), || format!("{before} is still there:\n{stats}"))?;
    bed.attach_another(FIRST, &format!("{},rate=10Mb/s", interface(&address::mac(CONTROL))))?;
    let shown = bed.weir(&format!("vif show {}", after.replace(".0", ".1")))?;
    check(shown.contains("10Mbit"), || format!("the toolstack's rate is not in force:\n{shown}"))?;
    bed.detach_another(FIRST)?;
    all_lines_came(bed)?;
    bed.destroy(FIRST)?;
    bed.detach(SECOND)?;
    nothing_mapped(bed)?;
    weir.stop(bed)
}

/// Has the first guest send a numbered line ten times a second to the second one, over one connection, until it has a
/// file.
fn send_lines(bed: &mut Bed) -> Result<()> {
    // nc ends both directions where its input ends.
    let receives = format!("tail -f /dev/null | nc -l -p {LINES_PORT} >/tmp/lines 2>/tmp/nc.log &");
    bed.run_in(SECOND, &receives, PATIENCE)?;
    let sends = format!(
        "(i=0; until [ -e /tmp/enough ]; do echo $i; i=$((i+1)); echo $i >/tmp/sent; sleep 0.1; done) | \
         nc {} {LINES_PORT} >/dev/null 2>&1 &",
        SECOND.ip()
    );
    bed.run_in(FIRST, &sends, PATIENCE)?;
    let some = "i=0; until [ $(wc -l </tmp/lines) -gt 9 ]; do \
                [ $((i+=1)) -lt 300 ] || { cat /tmp/nc.log; exit 1; }; sleep 0.1; done";
    bed.run_in(SECOND, some, PATIENCE).map(drop)
}

/// Ends the connection of [`send_lines`]. Every line must have come, in its order.
fn all_lines_came(bed: &mut Bed) -> Result<()> {
    let sent = bed.run_in(FIRST, "touch /tmp/enough; sleep 1; cat /tmp/sent", PATIENCE)?;
    let all = format!(
        "i=0; until [ $(wc -l </tmp/lines) = {} ]; do [ $((i+=1)) -lt 300 ] || break; sleep 0.1; done; \
         awk '$1 != NR - 1 {{ print \"line\", NR, \"is\", $1; exit }} END {{ print NR }}' /tmp/lines",
        sent.trim()
    );
    let came = bed.run_in(SECOND, &all, PATIENCE)?;
    check(came.trim() == sent.trim(), || {
        format!("{} lines were sent, and came: {came}", sent.trim())
    })
}

/// Makes the guest with a channel poll, and waits until it does.
fn have_guest_poll(bed: &mut Bed) -> Result<()> {
    let vif = bed.vif(WITH_CHANNEL)?;
    bed.weir(&format!("vif set {vif} moderation=frontend"))?;
    guest_polls(bed, true)?;
    let explained = bed.weir(&format!("explain {vif}"))?;
    check(explained.contains("guest polls by") && !explained.contains("by no timer"), || {
        format!("weir does not know that {vif}'s guest polls:\n{explained}")
    })
}

/// Waits until the guest with a channel polls by its timer (`polls`) or does not.
fn guest_polls(bed: &mut Bed, polls: bool) -> Result<()> {
    let test = if polls { "-gt" } else { "-eq" };
    let timer = format!(
        "i=0; until [ $(cat /sys/class/net/eth0/gro_flush_timeout) {test} 0 ]; do \
         [ $((i+=1)) -lt 300 ] || {{ cat /tmp/agent.log; exit 1; }}; sleep 0.1; done"
    );
    bed.run_in(WITH_CHANNEL, &timer, PATIENCE).map(drop)
}

/// Detaches the interfaces of both guests.
pub fn disconnect_all(bed: &mut Bed) -> Result<()> {
    bed.detach(FIRST)?;
    bed.detach(SECOND)
}

/// Attaches the interfaces of both guests.
pub fn connect_all(bed: &mut Bed) -> Result<()> {
    bed.connect(FIRST)?;
    bed.connect(SECOND)
}

fn ping_both_ways(bed: &mut Bed) -> Result<()> {
    ping(bed, FIRST, &SECOND.ip(), 56)?;
    // The largest payload of one frame.
    ping(bed, SECOND, &FIRST.ip(), 1472)
}

/// Sends three echo requests. Each must be answered.
fn ping(bed: &mut Bed, from: Domain, to: &str, payload: u32) -> Result<()> {
    bed.run_in(from, &format!("ping -c 3 -i 0.2 -W 5 -s {payload} {to}"), Duration::from_secs(30))
        .map(drop)
}

fn nothing_mapped(bed: &mut Bed) -> Result<()> {
    let grants = bed.grants()?;
    check(grants.mapped == 0, || {
        format!("{} grants are still mapped:{}", grants.mapped, grants.report)
    })
}
